"""Runs many generations in parallel and yields their results in the order of the prompts.

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

PROMPTS_PER_THREAD = 2
"""Prompts started or queued per thread: a slow generation leaves no thread idle, and few results
wait to be taken."""


class ManyResults(Closeable, Generic[P]):
    """Iterator of results in the order of the prompts, with several generations running ahead.

    An error of a prompt or a generation is raised in its place and ends all others, as do `close`
    and `cancel`. A generation that was cancelled gives the last result. Prompts are taken as
    needed, in the iterating thread.
    """

    def __init__(
        self,
        prompts: Iterable[P],
        start: Callable[[P], Generation],
        n_at_once: int,
        check_thread: Callable[[], None],
    ) -> None:
        """`check_thread` raises UsageError in a thread that must not wait for a generation."""
        self._prompts: Iterator[P] = iter(prompts)
        self._start = start
        self._n_ahead = PROMPTS_PER_THREAD * n_at_once
        self._check_thread = check_thread
        self._under_way = _UnderWay()
        self._pool = ThreadPoolExecutor(n_at_once, "edgespec-generation")
        self._results: deque[Future[GenerationResult]] = deque()
        self._iterating = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GenerationResult:
        """The next result. Raises the generations' errors, and UsageError in a second thread."""
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
        """End all generations soon and start no further ones, from any thread."""
        self._under_way.cancel()

    def close(self) -> None:
        """End all generations and wait for their threads. Idempotent, from any thread."""
        self.cancel()
        self._pool.shutdown(cancel_futures=True)

    def __del__(self) -> None:
        # the garbage collector may run within the models' calls, where waiting may deadlock
        if pool := getattr(self, "_pool", None):
            self._under_way.is_cancelled = True
            pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> GenerationResult | None:
        """Start further generations and return the next result; None at the end."""
        if self._under_way.is_cancelled:
            return None
        self._check_thread()
        for prompt in islice(self._prompts, self._n_ahead - len(self._results)):
            self._results.append(self._pool.submit(self._under_way.run, self._start, prompt))
        return self._results.popleft().result() if self._results else None


class _UnderWay:
    """Generations that run or wait for their turn, and can be cancelled together."""

    def __init__(self) -> None:
        self._generations: list[Generation] = []
        self.is_cancelled = False

    def run(self, start: Callable[[P], Generation], prompt: P) -> GenerationResult:
        """The result of the generation. Raises Cancelled if it did not start."""
        if self.is_cancelled:
            raise Cancelled("the generations were cancelled")
        with start(prompt) as generation:
            self._generations.append(generation)
            try:
                if self.is_cancelled:  # since it was checked above
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
