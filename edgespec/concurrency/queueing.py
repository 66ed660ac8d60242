"""A lock that threads get in the order in which they asked for it.

Python's own lock goes to whoever comes first, most often the thread that has just released it.
"""

from __future__ import annotations

import threading

from edgespec.concurrency.owning import POLL_S


class FairLock:
    """A context manager that one thread at a time is in; not reentrant."""

    def __init__(self) -> None:
        self._line: list[object] = []
        """One entry a thread; the first one has the lock."""
        self._change = threading.Condition()

    def __enter__(self) -> None:
        mine = object()
        with self._change:
            self._line.append(mine)
            try:
                while self._line[0] is not mine:
                    self._change.wait(POLL_S)
            except BaseException:
                self._line.remove(mine)
                self._change.notify_all()
                raise

    def __exit__(self, *error: object) -> None:
        with self._change:
            self._line.pop(0)
            self._change.notify_all()
