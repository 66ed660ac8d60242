"""Processes of our own: the command that starts an interpreter, signals that ask one to end, and
why one ended early, by its exit code."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from threading import Event

from edgespec.errors import EdgespecError

_ACTING = "--edgespec-as-interpreter"
"""First argument of a frozen application that is to run a module instead of its own program."""
_acting = Event()
ENDING_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, a service manager's wish, and outside Windows a terminal that is gone."""
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
_SHELL = 128
"""A shell, sudo or systemd-run exits with this plus the signal number that ended its command."""


def is_frozen() -> bool:
    """True in an application whose executable is no Python interpreter."""
    name = Path(sys.executable or "").name.lower()
    is_python = name.startswith(("python", "pypy")) and os.access(sys.executable, os.X_OK)
    return not is_python or bool(getattr(sys, "frozen", False))


def is_available() -> bool:
    """True if `python` gives a command."""
    return _acting.is_set() or not is_frozen()


def python(*arguments: str) -> list[str]:
    """The command of an interpreter with these arguments. Raises EdgespecError in a frozen
    application, which would only start itself once more.

    It imports nothing from the current folder, where somebody else's files may have any name:
    with -m and -c Python looks there first.
    """
    if not is_available():
        raise EdgespecError(
            "this needs a second process, and the application comes without a Python interpreter "
            "that could be started: freeze it with PyInstaller, or do this outside of it"
        )
    return [sys.executable, _ACTING if is_frozen() else "-P", *arguments]


def act_as_interpreter() -> None:
    """Let `python` start this frozen application, which then runs the module that is named and
    exits. To be called before the application's own program."""
    _acting.set()
    match sys.argv[1:]:
        case [flag, "-m", module, *_] if flag == _ACTING:
            del sys.argv[1:4]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            sys.exit()


def signal_name(exit_code: int) -> str | None:
    """Name of the signal that ended a process, or None.

    `exit_code` is the one reported by `subprocess` or by a shell.
    """
    number = -exit_code if exit_code < 0 else exit_code - _SHELL
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def exit_reason(exit_code: int, last_line: str = "") -> str:
    """A clause that says why a process ended early; `last_line` is the last line of its output."""
    name = signal_name(exit_code)
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
