"""Runs a generation in the background: while an earlier one is consumed, or to follow its prompt.

Knows generations and threads, but no responses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
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

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class TokensAhead(Closeable):
    """A generation that runs in a thread of its own and buffers its tokens; implements `Tokens`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._events: SimpleQueue[Item | None] = SimpleQueue()
        """Buffered tokens; None marks the end."""
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name="edgespec-choice", daemon=True)
        self._thread.start()

    @property
    def result(self) -> GenerationResult:
        return self._tokens.result

    def __iter__(self) -> Iterator[Item]:
        while (event := self._events.get()) is not None:
            yield event
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        self._tokens.cancel()

    def close(self) -> None:
        """Cancel the generation and wait for its thread. Idempotent."""
        self._tokens.cancel()
        self._thread.join()
        self._tokens.close()

    def _run(self) -> None:
        try:
            for event in self._tokens:
                self._events.put(event)
        except Exception as error:  # noqa: BLE001 - raised by __iter__
            self._failure = error
        finally:
            self._events.put(None)


class FollowedTokens(Closeable):
    """A generation whose iterator also yields the progress of reading its prompt.

    It runs in a thread of its own once it is iterated.
    """

    def __init__(
        self,
        start: Callable[[Progress], Tokens],
        n_prompt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts the generation of a prompt of `n_prompt` tokens, given its callback."""
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._n_prompt = n_prompt
        self._clock = clock
        self._latest: PromptProgress | None = None
        self._begun_s = 0.0
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name="edgespec-followed", daemon=True)
        self._tokens = start(self._see)

    @property
    def result(self) -> GenerationResult:
        return self._tokens.result

    def __iter__(self) -> Iterator[Item]:
        self._thread.start()
        while (item := self._items.get()) is not None:
            yield item
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        self._tokens.cancel()

    def close(self) -> None:
        """Cancel the generation and wait for its thread. Idempotent."""
        self._tokens.cancel()
        if self._thread.ident is not None:
            self._thread.join()
        self._tokens.close()

    def _see(self, what: str, share: float) -> None:
        """Report a share of the prompt; called by whichever thread reads it."""
        self._report(round(share * self._n_prompt))

    def _report(self, processed: int) -> None:
        before, now_s = self._latest, self._clock()
        if before is None:
            self._begun_s = now_s
        elif processed <= before.processed:
            return
        self._latest = PromptProgress(
            self._n_prompt,
            processed if before is None else before.cache,
            processed,
            round(1000 * (now_s - self._begun_s)),
        )
        self._items.put(self._latest)

    def _run(self) -> None:
        try:
            is_first = True
            for event in self._tokens:
                if is_first:
                    self._report(self._n_prompt)
                is_first = False
                self._items.put(event)
        except Exception as error:  # noqa: BLE001 - raised by __iter__
            self._failure = error
        finally:
            self._items.put(None)
