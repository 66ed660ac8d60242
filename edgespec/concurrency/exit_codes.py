"""Signals that ask a process to end, and explanations of the exit code of one that ended early.

Knows signals and how shells report them; not which process it was.
"""

from __future__ import annotations

import signal
import sys

ENDING_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, a service manager's wish, and outside Windows a terminal that is gone."""
if sys.platform != "win32":
    ENDING_SIGNALS += (signal.SIGHUP,)

_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
_SHELL = 128
"""A shell, sudo or systemd-run exits with this plus the signal number that ended its command."""


def signal_name(exit_code: int) -> str | None:
    """Name of the signal that ended a process, or None.

    `exit_code` is the one reported by `subprocess` or by a shell.
    """
    number = -exit_code if exit_code < 0 else exit_code - _SHELL
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def exit_reason(exit_code: int | None, last_line: str = "") -> str:
    """A clause that says why a process ended early; `last_line` is the last line of its output."""
    name = None if exit_code is None else signal_name(exit_code)
    words = f": {last_line}" if last_line else ""
    if name == "SIGKILL":
        return "it was killed, as the kernel does where memory is short"
    if name in _CRASHES:
        return (
            f"native code crashed, {name}{words}; a library that was built for another processor "
            "does: build it here with pip install --no-cache-dir --force-reinstall --no-deps "
            "llama-cpp-python; PYTHONFAULTHANDLER=1 shows where it was"
        )
    return (f"ended by {name}" if name else f"exit code {exit_code}") + words
