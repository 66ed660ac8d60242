"""Handles Ctrl-C and SIGTERM: the first stops the command, the third kills the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
_MAX_ORDERLY = 2
"""Number of signals after which the command still ends in an orderly way."""
_WAITING = b"\nedgespec: stopping; once more ends it at once\n"
_ENDING = b"\nedgespec: error: interrupted\n"

_Handler = Callable[[int, FrameType | None], object] | int | None


class Interrupts:
    """Handlers of SIGINT and SIGTERM while a command runs.

    The first signal raises KeyboardInterrupt in the main thread; within `stopping` it calls a stop
    function instead, so that partial results are kept. Later signals raise nothing, so that closing
    is not interrupted.
    """

    def __init__(self) -> None:
        self._n_heard = 0
        self._stop: Callable[[], None] | None = None
        self._is_repeatable = False

    @contextmanager
    def heard(self, until_the_end: bool = False) -> Iterator[None]:
        """Handle the signals in the block; with `until_the_end` they are ignored afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, was in before.items():
                signal.signal(number, signal.SIG_IGN if until_the_end else was)

    @contextmanager
    def stopping(self, stop: Callable[[], None], repeatable: bool = False) -> Iterator[None]:
        """In the block, a signal calls `stop` in a thread of its own and raises nothing.

        With `repeatable`, every SIGINT only calls `stop`, which ends one answer of a conversation;
        SIGTERM still ends the command.
        """
        self._stop, self._is_repeatable = stop, repeatable
        try:
            yield
        finally:
            self._stop, self._is_repeatable = None, False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_repeatable and number == signal.SIGTERM:
            self._stop = None
        elif self._is_repeatable and self._stop is not None:
            threading.Thread(target=self._stop, daemon=True).start()
            return
        self._n_heard += 1
        if self._n_heard > _MAX_ORDERLY:
            os.write(2, _ENDING)
            os._exit(INTERRUPTED)
        if self._n_heard > 1:
            os.write(2, _WAITING)
        if self._stop is not None:
            # in a thread, because the interrupted main thread may hold a lock that `stop` needs
            threading.Thread(target=self._stop, daemon=True).start()
        elif self._n_heard == 1:
            raise KeyboardInterrupt
