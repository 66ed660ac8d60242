"""Closes objects that own memory, files, threads or native handles, once and when unused.

Knows threads and forks; not what the closed objects do.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from edgespec.errors import EdgespecError, UsageError

POLL_S = 0.1
"""Longest uninterrupted wait of a thread: the other side may have to be cancelled again, and on
Windows an endless wait blocks Ctrl-C."""


class Closeable(ABC):
    """A context manager that closes itself when its block ends."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def close_all(*closes: Callable[[], None]) -> None:
    """Call all of `closes` in order, even if some raise; then raise the first error, with the later
    ones as notes."""
    failure: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - the rest must be closed, too
            if failure is None:
                failure = error
            else:
                failure.add_note(f"closing also failed with {type(error).__name__}: {error}")
    if failure is not None:
        raise failure


class Users:
    """Counts the calls inside an object, so that it is released only when there are none.

    Native memory may be freed only when no thread uses it: `use` wraps every call that touches it,
    and `close` refuses new calls, waits for those inside, and then releases it once.
    """

    def __init__(self, name: str, closed: Callable[[str], EdgespecError] = UsageError) -> None:
        """`name` is the subject of error messages; `closed` makes the error of calls after
        `close`."""
        self._name = name
        self._closed = closed
        self._inside: list[tuple[int, bool, object]] = []
        """The thread of each call inside, whether it wants to be alone, and what tells it from
        others. List methods are atomic, so entering and leaving need
        no lock: a signal handler or the garbage collector may run at any point."""
        self._left = threading.Event()
        self._release = threading.RLock()
        self._process = os.getpid()
        self.is_closing = False
        """True once new calls are refused."""
        self.is_released = False
        """True once resources are being released or have been."""

    @property
    def is_inside(self) -> bool:
        """True if the calling thread is inside a call."""
        return any(thread == threading.get_ident() for thread, *_ in list(self._inside))

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process."""
        return os.getpid() != self._process

    @contextmanager
    def use(self, alone: bool = False) -> Iterator[None]:
        """Prevent the release while the block runs.

        Raises the error of `closed` once it is closing. Raises UsageError if `alone` is set and
        another call that wants to be alone is inside, and in a fork of the process, which has none
        of its threads.
        """
        if self.is_forked:
            raise UsageError(
                f"{self._name} belongs to the process {self._process}, of which this is a fork "
                "without its threads: load one here, or start processes by multiprocessing's spawn"
            )
        entry = (threading.get_ident(), alone, object())
        try:
            self._inside.append(entry)
            if self.is_closing:
                raise self._closed(f"{self._name} is closed")
            if alone and next(other for other in list(self._inside) if other[1]) is not entry:
                raise UsageError(f"{self._name} is in use: one thread at a time")
            yield
        finally:
            self._leave(entry)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Enter from a callback, also while the object is closing; nobody's `alone` minds it."""
        entry = (threading.get_ident(), False, object())
        try:
            self._inside.append(entry)
            yield
        finally:
            self._leave(entry)

    def _leave(self, entry: tuple[int, bool, object]) -> None:
        self._inside.remove(entry)
        if self.is_closing:
            self._left.set()

    def close(self, hurry: Callable[[], None], release: Callable[[], None]) -> None:
        """Call `release` once no call is inside; `hurry` asks those inside to return.

        Runs once, and does nothing in a fork of the process, whose memory ends with it. Raises
        UsageError in a thread that is inside a call, which would wait for itself.
        """
        if self.is_forked:
            self.is_closing = self.is_released = True
            return
        if self.is_inside:
            raise UsageError(
                f"{self._name} cannot be closed from within a call of its own: use cancel() there "
                "and close it when the call has come back"
            )
        with self._release:
            if self.is_released:
                return
            self.is_closing = True
            while self._inside:
                try:
                    self._left.clear()
                    hurry()
                    if self._inside:
                        self._left.wait(POLL_S)
                except KeyboardInterrupt:  # freeing memory in use would crash the process
                    continue
            self.is_released = True
            release()


def close_forgotten(owner: object, close: Callable[[], None]) -> None:
    """Warn that `owner` was never closed, and close it in a new thread; for use in `__del__`.

    The garbage collector runs in any thread, even in callbacks of native calls, where waiting for a
    lock or a thread may deadlock. At the end of the process nothing is closed.
    """
    try:
        name = type(owner).__name__
        message = f"a {name} was never closed: use `with`, or its close()"
        warnings.warn(message, ResourceWarning, stacklevel=3, source=owner)
    finally:
        if not sys.is_finalizing():
            threading.Thread(target=close, name="edgespec-close").start()
