"""The thread in which a model runs, so that the caller's thread stays responsive.

Native code in the main thread blocks Ctrl-C; here the main thread only waits. What runs in the
thread may look whether its call was cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable
from edgespec.errors import Cancelled

T = TypeVar("T")

_calls = threading.local()
"""The call that runs in a worker's thread: `ending` is set once it is to end."""


def raise_if_cancelled() -> None:
    """Raise Cancelled in a worker's thread whose call was cancelled."""
    ending = getattr(_calls, "ending", None)
    if ending is not None and ending.is_set():
        raise Cancelled("it was cancelled")


class Worker(Closeable):
    """Runs one call at a time in a thread of its own, which starts with the first call."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="edgespec-model")

    @contextmanager
    def running(self, call: Callable[[], T], cancel: Callable[[], None]) -> Iterator[Running[T]]:
        """Run `call` beside the block, which does not end before the call does.

        `cancel` makes the call end soon; it is called if the block ends first.
        """
        ending = threading.Event()
        future = self._executor.submit(_called, call, ending)
        try:
            yield Running(future)
        finally:
            _end(future, ending, cancel)

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
            raise_if_cancelled()
            if check is not None and not self._future.done():
                check()
        return self._future.result()


def _called(call: Callable[[], T], ending: threading.Event) -> T:
    _calls.ending = ending
    return call()


def _end(future: Future[T], ending: threading.Event, cancel: Callable[[], None]) -> None:
    """Cancel the call and wait until it has ended, even if Ctrl-C is pressed again."""
    ending.set()
    while not future.done():
        try:
            # repeatedly, because a call that has not begun cannot be cancelled yet
            cancel()
            wait([future], timeout=POLL_S)
        except KeyboardInterrupt:
            continue
