"""Ctrl-C and SIGTERM: the first stops the command, the second waits, the third ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
_MAX_PATIENT = 2
"""Number of signals after which the process still ends in good order."""
_WAITING = b"\nedgespec: stopping; once more ends it at once\n"
_ENDING = b"\nedgespec: error: interrupted\n"

_Handler = Callable[[int, FrameType | None], object] | int | None


class Interrupts:
    """Handlers of SIGINT and SIGTERM while a command runs.

    The first signal raises KeyboardInterrupt in the main thread; within `stopping` it calls a stop
    function instead, so that the work done by then is not lost. Later signals raise nothing, so
    that closing is not interrupted.
    """

    def __init__(self) -> None:
        self._n_heard = 0
        self._stop: Callable[[], None] | None = None
        self._forgives = False

    @contextmanager
    def heard(self, until_the_end: bool = False) -> Iterator[None]:
        """Handle the signals in the block, and `until_the_end` of the process none thereafter."""
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
    def stopping(self, stop: Callable[[], None], forgives: bool = False) -> Iterator[None]:
        """In the block, a signal calls `stop`, in a thread of its own, and raises nothing.

        With `forgives`, SIGINT may come as often as it likes: it stops no more than one answer of
        a conversation. SIGTERM ends the command as ever.
        """
        self._stop, self._forgives = stop, forgives
        try:
            yield
        finally:
            self._stop, self._forgives = None, False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._forgives and number == signal.SIGTERM:
            self._stop = None
        elif self._forgives and self._stop is not None:
            threading.Thread(target=self._stop, daemon=True).start()
            return
        self._n_heard += 1
        if self._n_heard > _MAX_PATIENT:
            os.write(2, _ENDING)
            os._exit(INTERRUPTED)
        if self._n_heard > 1:
            os.write(2, _WAITING)
        if self._stop is not None:
            # Where this interrupts the main thread, it may hold a lock that stopping needs.
            threading.Thread(target=self._stop, daemon=True).start()
        elif self._n_heard == 1:
            raise KeyboardInterrupt
