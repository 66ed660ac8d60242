"""The thread in which a model runs while the caller's thread does something else.

Native code that runs in the main thread keeps Ctrl-C waiting; here the main thread only waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable

T = TypeVar("T")


class Worker(Closeable):
    """One thread, started when first needed, that runs one call at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="edgespec-model")

    @contextmanager
    def running(self, call: Callable[[], T], cancel: Callable[[], None]) -> Iterator[Running[T]]:
        """Run `call` while the block runs; the call has ended when the block is left.

        `cancel` makes the call end soon; it is called when the block is left early.
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
        """Run `call` and wait for its result; an exception here, such as Ctrl-C, cancels it first.

        `check` is called now and then while it runs, and may raise.
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
    """Return only when the call has ended, however often Ctrl-C is pressed."""
    while not future.done():
        try:
            # repeatedly: a call that has not begun cannot be cancelled yet
            cancel()
            wait([future], timeout=POLL_S)
        except KeyboardInterrupt:
            continue
