"""Handles Ctrl-C, SIGTERM and SIGHUP: the first stops the command, the second ends it at once."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from edgespec.concurrency.own_processes import ENDING_SIGNALS

INTERRUPTED = 130
ECHO_S = 0.5
"""Seconds in which further signals are the first one's: a terminal sends Ctrl-C to a whole group,
and programs such as `timeout` pass theirs on to it."""
PATIENCE_S = 1.0
"""Seconds after which a user is told that the command is still being stopped."""
_WAITING = b"\nedgespec: stopping; once more ends it at once\n"
_ENDING = b"\nedgespec: error: interrupted\n"


class Interrupts:
    """Handlers of the signals that end a command, while it runs.

    The first signal raises KeyboardInterrupt in the main thread; within `stopping` it calls a stop
    function instead, so that partial results are kept. The second ends the process and those that
    it has started, whatever they do.
    """

    def __init__(self) -> None:
        self._heard_s: float | None = None
        """Time of the last signal that was none of an earlier one's."""
        self._n_orderly = 1
        self._stop: Callable[[], None] | None = None
        self._is_repeatable = False
        self.has_raised = self._is_echo = False
        self._over = threading.Event()

    @contextmanager
    def heard(self, until_the_end: bool = False) -> Iterator[None]:
        """Handle the signals in the block; with `until_the_end` they are ignored afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        before = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, was in before.items():
                signal.signal(number, signal.SIG_IGN if until_the_end else was)
            self._over.set()

    @contextmanager
    def stopping(
        self, stop: Callable[[], None], repeatable: bool = False, n_orderly: int = 1
    ) -> Iterator[None]:
        """In the block, a signal calls `stop` in a thread of its own and raises nothing.

        As many as `n_orderly` signals do so, before one ends the process. With `repeatable`, every
        SIGINT only calls `stop`, which ends one answer of a conversation; the others still end the
        command.
        """
        self._stop, self._is_repeatable, self._n_orderly = stop, repeatable, n_orderly
        try:
            yield
        finally:
            self._stop, self._is_repeatable = None, False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_echo:
            self._is_echo = False
            if not _is_interrupted(sys.exc_info()[1]):
                raise KeyboardInterrupt
            return
        if self._is_repeatable and number != signal.SIGINT:
            self._stop = None
        elif self._is_repeatable and self._stop is not None:
            threading.Thread(target=self._stop, daemon=True).start()
            return
        now, before = time.monotonic(), self._heard_s
        if before is not None and now - before < ECHO_S:
            return
        self._heard_s = now
        self._n_orderly -= 1
        if self._n_orderly < 0:
            _end_all()
        if before is None:
            threading.Thread(target=self._watch, daemon=True).start()
        if self._stop is not None:
            # in a thread, because the interrupted main thread may hold a lock that `stop` needs
            threading.Thread(target=self._stop, daemon=True).start()
        elif before is None:
            self.has_raised = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Tell who waits, and raise an exception again that native code has lost: importing NumPy
        and onnxruntime makes it an ImportError."""
        if self._over.wait(PATIENCE_S):
            return
        _tell(_WAITING)
        while self.has_raised and not self._over.is_set():
            self._is_echo = True
            _thread.interrupt_main()
            self._over.wait(PATIENCE_S)


def _is_interrupted(handled: BaseException | None) -> bool:
    """True if a KeyboardInterrupt is being handled."""
    while handled is not None and not isinstance(handled, KeyboardInterrupt):
        handled = handled.__cause__ or handled.__context__
    return handled is not None


def _end_all() -> None:
    """End the process, and before it the processes that it has started."""
    from edgespec.concurrency.program import kill_started_by

    kill_started_by(os.getpid())
    _tell(_ENDING)
    os._exit(INTERRUPTED)


def _tell(message: bytes) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, message)
