"""Decoding by the runtime's library itself.

For comparison in benchmarks; the engine never uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from edgespec.errors import ContextOverflow
from edgespec.ports import Vocabulary
from edgespec.values import RoundStats

Pick: TypeAlias = Callable[[np.ndarray, Sequence[int]], int]
"""Picks the next token from its logits, [n_vocab], and all tokens before it."""


def pick_best(logits: np.ndarray, tokens: Sequence[int]) -> int:
    """The token with the highest logit."""
    return int(logits.argmax())


@dataclass(frozen=True, slots=True)
class Baseline:
    """A decoding strategy of the library itself."""

    name: str
    text: str
    """One-line description."""
    drafts: bool = False
    """True if it needs a draft model."""
    resident: bool = False
    """True if it keeps all weights in memory, so that they must fit."""


@dataclass(frozen=True, slots=True)
class BaselineRequest:
    """A prompt to continue. Its last token counts as decoding, as in the engine."""

    model: Path
    draft: Path | None
    prompt: str
    n_tokens: int
    """Most tokens; an end-of-generation token ends it earlier and is counted."""
    ctx_size: int
    n_threads: int
    bytes_read: Callable[[], int]
    """Returns the bytes that this process has read from storage so far."""
    pick: Pick = pick_best


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """Tokens and costs of a run; passes include waiting for storage."""

    tokens: tuple[int, ...]
    """Decoded tokens."""
    n_prompt_tokens: int
    load_s: float
    prompt_s: float
    decode_s: float
    rounds: tuple[RoundStats, ...]
    bytes_read: int
    """Bytes read while decoding."""


class Baselines(Protocol):
    """Decodes with the library itself. A module can implement it."""

    LIBRARY: str
    """Name and version of the library."""
    BASELINES: Sequence[Baseline]

    def run(self, name: str, request: BaselineRequest) -> BaselineRun:
        """Load the models, decode, and free them. Raises ModelError or UsageError."""


def measured(
    request: BaselineRequest,
    load_s: float,
    vocabulary: Vocabulary,
    read: Callable[[Sequence[int]], object],
    decode: Callable[[Sequence[int]], tuple[list[int], list[RoundStats]]],
) -> BaselineRun:
    """Time a loaded model: `read` the prompt but its last token, then `decode` from there.

    Raises ContextOverflow for a text that does not fit into the context.
    """
    prompt = vocabulary.encode(request.prompt)
    if len(prompt) + request.n_tokens > request.ctx_size:
        raise ContextOverflow(request.ctx_size, len(prompt) + request.n_tokens)
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
        decode_s=sum(cost.wall_s for cost in rounds),
        rounds=tuple(rounds),
        bytes_read=request.bytes_read() - read_before,
    )
