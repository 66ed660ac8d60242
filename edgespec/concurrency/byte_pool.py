"""A pool of bytes that serves threads first come, first served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgespec.concurrency.owning import POLL_S


class BytePool:
    """A pool of bytes that threads reserve in the order of their requests.

    A thread may hold one reservation at a time.
    """

    def __init__(self, n_bytes: int) -> None:
        """`n_bytes` is the size of the pool and the largest possible reservation."""
        self._free_bytes = n_bytes
        self._line: list[object] = []
        self._change = threading.Condition()

    @contextmanager
    def reserved(self, n_bytes: int, check: Callable[[], None]) -> Iterator[None]:
        """Wait for `n_bytes` and hold them in the block; `check` is polled and may raise."""
        if n_bytes:
            self._reserve(n_bytes, check)
        try:
            yield
        finally:
            with self._change:
                self._free_bytes += n_bytes
                self._change.notify_all()

    def _reserve(self, n_bytes: int, check: Callable[[], None]) -> None:
        mine = object()
        with self._change:
            self._line.append(mine)
            try:
                while self._line[0] is not mine or n_bytes > self._free_bytes:
                    check()
                    self._change.wait(POLL_S)
                self._free_bytes -= n_bytes
            finally:
                self._line.remove(mine)
                self._change.notify_all()
