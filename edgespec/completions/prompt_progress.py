"""Follows a generation from the reading of its prompt on.

Knows generations, but no responses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from edgespec.concurrency.owning import Closeable
from edgespec.ports import Progress
from edgespec.values import GenerationResult, TokenEvent


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Tokens of a prompt that have been read so far, as llama.cpp's server counts them."""

    total: int
    cache: int
    """Tokens that were in the KV cache."""
    processed: int
    """Tokens that were in the cache or have been read."""
    time_ms: int
    """Milliseconds since reading began."""


Item = TokenEvent | PromptProgress
"""An item that a generation yields; progress only where it is followed."""


class Tokens(Protocol):
    """Protocol of the part of a generation that a completion uses."""

    @property
    def result(self) -> GenerationResult: ...

    def __iter__(self) -> Iterator[Item]: ...

    def run_ahead(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class ToldTokens(Tokens, Protocol):
    """Protocol of a generation that also yields what it is told."""

    def tell(self, item: Item) -> None: ...


class FollowedTokens(Closeable):
    """A generation whose iterator also yields the progress of reading its prompt."""

    def __init__(
        self,
        start: Callable[[Progress], ToldTokens],
        n_prompt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts the generation of a prompt of `n_prompt` tokens, given its callback."""
        self._n_prompt = n_prompt
        self._clock = clock
        self._latest: PromptProgress | None = None
        self._begun_s = 0.0
        self._tokens = start(self._see)

    @property
    def result(self) -> GenerationResult:
        return self._tokens.result

    def __iter__(self) -> Iterator[Item]:
        is_read = False
        for item in self._tokens:
            if not is_read and isinstance(item, TokenEvent):
                is_read = True
                if (last := self._progress(self._n_prompt)) is not None:
                    yield last
            yield item

    def run_ahead(self) -> None:
        self._tokens.run_ahead()

    def cancel(self) -> None:
        self._tokens.cancel()

    def close(self) -> None:
        """End the generation. Idempotent."""
        self._tokens.close()

    def _see(self, what: str, share: float) -> None:
        """Report a share of the prompt; called by the engine's thread."""
        progress = self._progress(round(share * self._n_prompt))
        if progress is not None:
            self._tokens.tell(progress)

    def _progress(self, processed: int) -> PromptProgress | None:
        """Progress after `processed` tokens; None if there is none since the latest."""
        before, now_s = self._latest, self._clock()
        if before is None:
            self._begun_s = now_s
        elif processed <= before.processed:
            return None
        self._latest = PromptProgress(
            self._n_prompt,
            processed if before is None else before.cache,
            processed,
            round(1000 * (now_s - self._begun_s)),
        )
        return self._latest
