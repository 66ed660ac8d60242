"""Optional port: decoding by a runtime's own library.

For comparison only; the engine never uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from edgespec.errors import UsageError
from edgespec.values import RoundCost, TextCost


@dataclass(frozen=True, slots=True)
class Baseline:
    """A strategy with which the library itself decodes."""

    name: str
    text: str
    """Description in a line."""
    drafts: bool = False
    """True if it needs a draft model."""
    resident: bool = False
    """True if it keeps all weights in memory: of no use where they do not fit."""


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
    """Counts the bytes that this process has read from storage so far."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """Tokens and costs of a run. Waiting for storage is part of its passes."""

    tokens: tuple[int, ...]
    n_prompt_tokens: int
    load_s: float
    prompt_s: float
    rounds: tuple[RoundCost, ...]
    bytes_read: int
    """Bytes read while decoding."""


@runtime_checkable
class OffersBaselines(Protocol):
    """Optional protocol of a runtime: it has baselines. `library` is a name and a version."""

    library: str
    baselines: Sequence[Baseline]

    def run_baseline(self, name: str, request: BaselineRequest) -> BaselineRun:
        """Load, decode, free. Raises ModelError or UsageError."""


@dataclass(frozen=True, slots=True)
class TogetherRun:
    """Texts that were decoded at once, with their costs in the same order."""

    texts: tuple[tuple[int, ...], ...]
    costs: tuple[TextCost, ...]
    n_prompt_tokens: int
    load_s: float
    wall_s: float
    """From the first prompt's first token to the end of the last text."""
    rounds: tuple[RoundCost, ...]
    """Passes, the prompts' first."""
    bytes_read: int


@runtime_checkable
class DecodesTogether(Protocol):
    """Optional protocol of a runtime: baselines that decode several texts in one pass."""

    together: Collection[str]
    """Names of these baselines."""

    def run_together(
        self, name: str, request: BaselineRequest, prompts: Sequence[str]
    ) -> TogetherRun:
        """Load, decode all `prompts` in the place of the request's own, free.

        Raises ModelError or UsageError.
        """


def check_room(prompt: Sequence[int], request: BaselineRequest) -> None:
    """Raise UsageError for a text that does not fit into the context."""
    if len(prompt) + request.n_tokens > request.ctx_size:
        raise UsageError(
            f"{len(prompt)} tokens of prompt and {request.n_tokens} more do not fit into a "
            f"context of {request.ctx_size}: raise --ctx-size"
        )


def decode_plainly(
    decode: Callable[[int], np.ndarray], token: int, n_tokens: int, ends: Collection[int]
) -> tuple[list[int], list[RoundCost]]:
    """A token a pass, greedily, after `token`; `decode` gives the logits after one, [n_vocab]."""
    tokens: list[int] = []
    rounds: list[RoundCost] = []
    while len(tokens) < n_tokens and not (tokens and token in ends):
        began = time.perf_counter()
        logits = decode(token)
        pass_s = time.perf_counter() - began
        token = int(logits.argmax())
        tokens.append(token)
        wall_s = time.perf_counter() - began
        rounds.append(RoundCost(1, 0, 0, 1, 0.0, pass_s, 0.0, wall_s))
    return tokens, rounds
