"""Many generations at once: their results in the order of the prompts.

Knows generations and threads, and nothing of prompts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, Self, TypeVar

from edgespec.concurrency.owning import Closeable
from edgespec.errors import Cancelled, UsageError
from edgespec.session.generation import Generation
from edgespec.values import GenerationResult

P = TypeVar("P")

AHEAD = 2
"""Prompts that are begun or waiting for a thread, for each generation at once: a slow first one
keeps no thread idle, and results that nobody has taken are few."""


class ManyResults(Closeable, Generic[P]):
    """Iterator of results, in the order of the prompts; several generations run ahead.

    An error of a prompt or a generation is raised in its place and ends all others, as do `close`,
    `cancel` and a generation that somebody cancelled, which is the last result. Prompts are taken
    as they are needed, in the thread that iterates.
    """

    def __init__(
        self,
        prompts: Iterable[P],
        start: Callable[[P], Generation],
        n_at_once: int,
        check_thread: Callable[[], None],
    ) -> None:
        """`check_thread` raises UsageError in a thread that may not wait for a generation."""
        self._prompts: Iterator[P] = iter(prompts)
        self._start = start
        self._n_ahead = AHEAD * n_at_once
        self._check_thread = check_thread
        self._under_way = _UnderWay()
        self._pool = ThreadPoolExecutor(n_at_once, "edgespec-generation")
        self._results: deque[Future[GenerationResult]] = deque()
        self._iterating = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GenerationResult:
        """The next result. Raises UsageError while another thread takes one, and the errors of
        generations."""
        if not self._iterating.acquire(blocking=False):
            raise UsageError("the results are in use: one thread at a time")
        try:
            result = self._next()
        except (Cancelled, CancelledError):
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise
        finally:
            self._iterating.release()
        if result is None or result.finish_reason == "cancelled":
            self.close()
        if result is None:
            raise StopIteration
        return result

    def cancel(self) -> None:
        """From any thread, at any moment: end all generations soon, and begin no other."""
        self._under_way.cancel()

    def close(self) -> None:
        """End all generations and wait for their threads. Idempotent, from any thread."""
        self.cancel()
        self._pool.shutdown(cancel_futures=True)

    def __del__(self) -> None:
        # the collector may run within the models' own calls, where nothing may be waited for
        if pool := getattr(self, "_pool", None):
            self._under_way.is_cancelled = True
            pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> GenerationResult | None:
        """The next result, with others begun ahead of it; None at the end."""
        if self._under_way.is_cancelled:
            return None
        self._check_thread()
        for prompt in islice(self._prompts, self._n_ahead - len(self._results)):
            self._results.append(self._pool.submit(self._under_way.run, self._start, prompt))
        return self._results.popleft().result() if self._results else None


class _UnderWay:
    """Generations that run or wait for their turn; knows nothing of who takes their results."""

    def __init__(self) -> None:
        self._generations: list[Generation] = []
        self.is_cancelled = False

    def run(self, start: Callable[[P], Generation], prompt: P) -> GenerationResult:
        """The result of the generation. Raises Cancelled where it did not begin."""
        if self.is_cancelled:
            raise Cancelled("the generations were cancelled")
        with start(prompt) as generation:
            self._generations.append(generation)
            try:
                if self.is_cancelled:  # meanwhile, which this generation has not heard
                    generation.cancel()
                for _ in generation:
                    pass
            finally:
                self._generations.remove(generation)
            return generation.result

    def cancel(self) -> None:
        self.is_cancelled = True
        for generation in list(self._generations):
            generation.cancel()
