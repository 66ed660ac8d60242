"""Closes objects that own memory, files, threads or native handles, once and when unused.

Knows threads and forks; not what the closed objects do.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
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
    """Call all of `closes` in order, even if some raise; then raise the last error, whose context
    has the earlier ones."""
    if closes:
        try:
            closes[0]()
        finally:
            close_all(*closes[1:])


class Users:
    """Counts the calls inside an object, so that it is released only when there are none; a context
    manager for them.

    Native memory may be freed only when no thread uses it: `with users` wraps every call that
    touches it, and `close` refuses new calls, waits for those inside, and then releases it once.
    """

    def __init__(
        self,
        name: str,
        closed: Callable[[str], EdgespecError] = UsageError,
        is_exclusive: bool = False,
    ) -> None:
        """`name` is the subject of error messages; `closed` makes the error of calls after
        `close`. With `is_exclusive`, a call raises UsageError while another is inside."""
        self._name = name
        self._closed = closed
        self._is_exclusive = is_exclusive
        self.inside: list[int] = []
        """The threads of the calls inside. List methods are atomic, so entering and leaving need no
        lock: a signal handler or the garbage collector may run at any point."""
        self.left = threading.Event()
        self._release = threading.RLock()
        self._process = os.getpid()
        self.is_closing = False
        """True once new calls are refused."""
        self.is_released = False
        """True once resources are being released or have been."""

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process."""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        """Prevent the release.

        Raises the error of `closed` once it is closing, and UsageError in a fork of the process,
        which has none of its threads.
        """
        thread = threading.get_ident()
        try:
            self.inside.append(thread)
            if self.is_forked:
                raise UsageError(
                    f"{self._name} belongs to the process {self._process}, of which this is a fork "
                    "without its threads: load one here, or start processes by multiprocessing's "
                    "spawn"
                )
            if self.is_closing:
                raise self._closed(f"{self._name} is closed")
            is_second = self.inside[0] != thread or self.inside.count(thread) > 1
            if self._is_exclusive and is_second:
                raise UsageError(f"{self._name} is in use: one thread at a time")
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        self.inside.remove(threading.get_ident())
        if self.is_closing:
            self.left.set()

    def close(self, hurry: Callable[[], None], release: Callable[[], None]) -> None:
        """Call `release` once no call is inside; `hurry` asks those inside to return.

        Runs once, and does nothing in a fork of the process, whose memory ends with it. Raises
        UsageError in a thread that is inside a call, which would wait for itself.
        """
        if self.is_forked:
            self.is_closing = self.is_released = True
            return
        if threading.get_ident() in self.inside:
            raise UsageError(
                f"{self._name} cannot be closed from within a call of its own: use cancel() there "
                "and close it when the call has come back"
            )
        with self._release:
            if self.is_released:
                return
            self.is_closing = True
            while self.inside:
                try:
                    self.left.clear()
                    hurry()
                    if self.inside:
                        self.left.wait(POLL_S)
                except KeyboardInterrupt:  # freeing memory in use would crash the process
                    continue
            self.is_released = True
            release()


def close_forgotten(owner: object, close: Callable[[], None]) -> None:
    """Warn that `owner` was never closed, and close it in a new thread; for use in `__del__`.

    The garbage collector runs in any thread, even in callbacks of native calls, where waiting for a
    lock or a thread may deadlock. At the end of the process nothing is closed.
    """
    if not sys.is_finalizing():
        threading.Thread(target=close, name="edgespec-close").start()
    message = f"a {type(owner).__name__} was never closed: use `with`, or its close()"
    warnings.warn(message, ResourceWarning, stacklevel=3, source=owner)
