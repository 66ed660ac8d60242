"""The thread in which a model runs, so that the caller's thread stays responsive.

Native code in the main thread blocks Ctrl-C; here the main thread only waits. What runs in the
thread may look whether its call was cancelled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeVar

from edgespec.concurrency.owning import POLL_S, Closeable
from edgespec.errors import Cancelled

T = TypeVar("T")
Running = Future
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any], threading.Event | None] | None]

_ENDING: ContextVar[threading.Event | None] = ContextVar("ending", default=None)
"""Set once the call that runs in a worker's thread is to end."""


def raise_if_cancelled() -> None:
    """Raise Cancelled in a worker's thread whose call was cancelled."""
    if (ending := _ENDING.get()) is not None and ending.is_set():
        raise Cancelled("it was cancelled")


class Worker(Closeable):
    """Runs one call at a time in a thread of its own, which starts with the first call.

    An executor's thread would take no call once the main thread has ended, while others go on.
    """

    def __init__(self) -> None:
        self._queue: Calls = SimpleQueue()
        self._end: weakref.finalize[..., Worker] | None = None
        self._is_closed = False

    def submit(self, call: Callable[[], T], ending: threading.Event | None = None) -> Future[T]:
        """Have the thread make a call after those that it has; does not wait. Where `ending` is set
        the call was cancelled."""
        if self._is_closed:
            raise RuntimeError("the worker is closed")
        if self._end is None:
            thread = threading.Thread(
                target=_work, args=(self._queue,), name="edgespec-model", daemon=True
            )
            thread.start()
            # also at exit: native code must not run while its library is unloaded
            self._end = weakref.finalize(self, _end_thread, self._queue, thread)
        future: Future[T] = Future()
        self._queue.put((future, call, ending))
        return future

    @contextmanager
    def running(self, call: Callable[[], T], cancel: Callable[[], None]) -> Iterator[Future[T]]:
        """Run `call` beside the block, which does not end before the call does.

        `cancel` makes the call end soon; it is called if the block ends first.
        """
        ending = threading.Event()
        future = self.submit(call, ending)
        try:
            yield future
        finally:
            ending.set()
            while not future.done():  # even if Ctrl-C is pressed again
                with suppress(KeyboardInterrupt):
                    cancel()  # again and again: a call that has not begun cannot be cancelled yet
                    wait([future], timeout=POLL_S)

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
            return result_of(running, check)

    def close(self) -> None:
        """End the thread after the calls that it has. Idempotent."""
        self._is_closed = True
        if self._end is not None:
            self._end()


def result_of(call: Future[T], check: Callable[[], None] | None = None) -> T:
    """Wait for the result of a worker's call. Raises what the call or `check` raises."""
    while not call.done():
        with suppress(TimeoutError):  # quicker than `wait`
            call.exception(timeout=POLL_S)
        raise_if_cancelled()
        if check is not None and not call.done():
            check()
    return call.result()


def fulfil(future: Future[T], call: Callable[[], T]) -> None:
    """Give a future the result of a call or its error, unless it was cancelled before."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            future.set_exception(error)
    del future, call  # which the error's traceback would keep


def _work(queue: Calls) -> None:
    for future, call, ending in iter(queue.get, None):
        _ENDING.set(ending)
        fulfil(future, call)
        del future, call, ending  # nothing of a call is kept until the next one


def _end_thread(queue: Calls, thread: threading.Thread) -> None:
    queue.put(None)
    if thread is not threading.current_thread():
        thread.join()
