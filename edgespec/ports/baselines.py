"""Optional port: decoding by a runtime's own library.

For comparison only; the engine never uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary
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


def measured(
    request: BaselineRequest,
    load_s: float,
    vocabulary: Vocabulary,
    read: Callable[[Sequence[int]], object],
    decode: Callable[[Sequence[int]], tuple[list[int], list[RoundCost]]],
) -> BaselineRun:
    """Have a loaded model `read` all of the prompt but its last token, and `decode` what follows
    the whole prompt. Raises UsageError for a text that does not fit into the context."""
    prompt = vocabulary.encode(request.prompt)
    check_room(prompt, request)
    began = time.perf_counter()
    read(prompt[:-1])
    prompt_s = time.perf_counter() - began
    read_before = request.bytes_read()
    tokens, rounds = decode(prompt)
    return BaselineRun(
        tokens=tuple(tokens),
        n_prompt_tokens=len(prompt),
        load_s=load_s,
        prompt_s=prompt_s,
        rounds=tuple(rounds),
        bytes_read=request.bytes_read() - read_before,
    )
