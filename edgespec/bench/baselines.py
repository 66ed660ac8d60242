"""What a runtime may offer besides its port: the ways in which its own library decodes.

An optional capability, for comparison only. The engine never uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgespec.values import RoundCost


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way in which the library itself decodes."""

    name: str
    text: str
    """What it does, in a line."""
    drafts: bool = False
    """Needs a draft model."""
    resident: bool = False
    """Keeps all weights in memory: of no use where they do not fit."""


@dataclass(frozen=True, slots=True)
class BaselineRequest:
    """One greedy continuation. The prompt's last token counts as decoding, as in the engine."""

    model: Path
    draft: Path | None
    prompt: str
    n_tokens: int
    """Most tokens; an end-of-generation token ends the text earlier and belongs to it."""
    ctx_size: int
    n_threads: int
    bytes_read: Callable[[], int]
    """What this process has read from storage so far."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """What it wrote and cost. Waiting for storage is part of its passes and not told apart."""

    tokens: tuple[int, ...]
    text: bytes
    n_prompt_tokens: int
    load_s: float
    prompt_s: float
    rounds: tuple[RoundCost, ...]
    bytes_read: int
    """While decoding."""


@runtime_checkable
class OffersBaselines(Protocol):
    """A runtime with baselines. `library` names what decodes, with its version."""

    library: str
    baselines: Sequence[Baseline]

    def run_baseline(self, name: str, request: BaselineRequest) -> BaselineRun:
        """Load, decode, free. Raises ModelError or UsageError."""
