"""The thread in which a model runs, so that the caller's thread stays responsive.

Native code in the main thread blocks Ctrl-C; here the main thread only waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable

T = TypeVar("T")


class Worker(Closeable):
    """Runs one call at a time in a thread of its own, which starts with the first call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="edgespec-model")

    @contextmanager
    def running(self, call: Callable[[], T], cancel: Callable[[], None]) -> Iterator[Running[T]]:
        """Run `call` beside the block, which does not end before the call does.

        `cancel` makes the call end soon; it is called if the block ends first.
        """
        future = self._executor.submit(call)
        try:
            yield Running(future)
        finally:
            _end(future, cancel)

    def run(
        self,
        call: Callable[[], T],
        cancel: Callable[[], None],
        check: Callable[[], None] | None = None,
    ) -> T:
        """Run `call` and wait for its result; Ctrl-C and other exceptions here cancel it.

        `check` is polled while it runs, and may raise.
        """
        with self.running(call, cancel) as running:
            return running.result(check)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._executor.shutdown(wait=True)


class Running(Generic[T]):
    """A call in the worker's thread."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self, check: Callable[[], None] | None = None) -> T:
        """Wait for the call's result. Raises what the call or `check` raises."""
        while not self._future.done():
            with suppress(TimeoutError):
                self._future.exception(timeout=POLL_S)
            if check is not None and not self._future.done():
                check()
        return self._future.result()


def _end(future: Future[T], cancel: Callable[[], None]) -> None:
    """Cancel the call and wait until it has ended, even if Ctrl-C is pressed again."""
    while not future.done():
        try:
            # repeatedly, because a call that has not begun cannot be cancelled yet
            cancel()
            wait([future], timeout=POLL_S)
        except KeyboardInterrupt:
            continue
