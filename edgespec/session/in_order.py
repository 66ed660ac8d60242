"""Results of many generations in the order of their prompts, with several written ahead.

Knows generations, and nothing of prompts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, Self, TypeVar

from edgespec.concurrency.owning import Closeable
from edgespec.engine.generation import Generation
from edgespec.errors import UsageError
from edgespec.values import GenerationResult

P = TypeVar("P")

PROMPTS_PER_SLOT = 2
"""Prompts started or queued per generation that runs at once: a slow one leaves no slot idle, and
few results wait to be taken."""


class InOrder(Closeable, Generic[P]):
    """Iterator of results in the order of the prompts, with several generations written ahead.

    An error of a prompt or a generation is raised in its place and ends all others, as do `close`
    and `cancel`. A generation that was cancelled gives the last result. Prompts are taken as
    needed, in the iterating thread.
    """

    def __init__(
        self, prompts: Iterable[P], start: Callable[[P], Generation], n_at_once: int
    ) -> None:
        self._prompts: Iterator[P] = iter(prompts)
        self._start = start
        self._n_ahead = PROMPTS_PER_SLOT * n_at_once
        self._started: deque[Generation | Exception] = deque()
        """Generations in the order of their prompts; an error stands for one that did not start."""
        self._is_cancelled = False
        self._iterating = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GenerationResult:
        """The next result. Raises the generations' errors, and UsageError in a second thread."""
        if not self._iterating.acquire(blocking=self._is_cancelled):  # then it soon ends
            raise UsageError("the results are in use: one thread at a time")
        try:
            result = self._next()
            if result is None or result.finish_reason == "cancelled":
                self._end()
        except BaseException:
            self._end()
            raise
        finally:
            self._iterating.release()
        if result is None:
            raise StopIteration
        return result

    def cancel(self) -> None:
        """End all generations soon and start no further ones, from any thread."""
        self._is_cancelled = True
        for generation in [*self._started]:
            if isinstance(generation, Generation):
                generation.cancel()

    def close(self) -> None:
        """End all generations and wait for them. Idempotent, from any thread."""
        self.cancel()
        with self._iterating:
            self._end()

    def _next(self) -> GenerationResult | None:
        """Start further generations and return the next result; None at the end."""
        if self._is_cancelled:
            return None
        for prompt in islice(self._prompts, self._n_ahead - len(self._started)):
            self._started.append(self._begun(prompt))
            if self._is_cancelled:  # since it was checked above
                self.cancel()
        if not self._started:
            return None
        first = self._started[0]
        if isinstance(first, Exception):
            raise first
        for _ in first:
            pass
        self._started.popleft()
        return first.result

    def _begun(self, prompt: P) -> Generation | Exception:
        try:
            generation = self._start(prompt)
            generation.run_ahead()
        except Exception as error:  # noqa: BLE001 - raised in its place
            return error
        return generation

    def _end(self) -> None:
        self.cancel()
        while self._started:
            generation = self._started.popleft()
            if isinstance(generation, Generation):
                generation.close()
