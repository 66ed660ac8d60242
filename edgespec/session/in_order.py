"""Results of many generations in the order of their prompts, with several written ahead.

Knows generations, and nothing of prompts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Generic, Self, TypeVar

from edgespec.concurrency.owning import Closeable
from edgespec.engine.generation import Generation
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
        self._started: deque[Generation] = deque()
        """Generations in the order of their prompts."""
        self._is_cancelled = False
        self._iterating = threading.Lock()
        self._results = self._written(iter(prompts), start, PROMPTS_PER_SLOT * n_at_once)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GenerationResult:
        """The next result. Raises the generations' errors."""
        with self._iterating:
            return next(self._results)

    def cancel(self) -> None:
        """End all generations soon and start no further ones, from any thread."""
        self._is_cancelled = True
        for generation in [*self._started]:
            generation.cancel()

    def close(self) -> None:
        """End all generations and wait for them. Idempotent, from any thread."""
        self.cancel()
        with self._iterating:
            self._results.close()

    def _written(
        self, prompts: Iterator[P], start: Callable[[P], Generation], n_ahead: int
    ) -> Generator[GenerationResult, None, None]:
        started = self._started
        try:
            failure: Exception | None = None
            while not self._is_cancelled:
                try:
                    for prompt in islice(prompts, 0 if failure else n_ahead - len(started)):
                        started.append(start(prompt))
                        started[-1].run_ahead()
                        if self._is_cancelled:  # since it was checked above
                            self.cancel()
                except Exception as error:  # noqa: BLE001 - raised in its place
                    failure = error
                if not started:
                    if failure is not None:
                        raise failure
                    return
                for _ in started[0]:
                    pass
                result = started.popleft().result
                self._is_cancelled |= result.finish_reason == "cancelled"
                yield result
        finally:
            self.cancel()
            while started:
                started.popleft().close()
