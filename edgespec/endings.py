"""How a process ended, in words, from its exit code.

Knows signals and shells' ways to pass them on; not which process it was.
"""

from __future__ import annotations

import signal

_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
_SHELL = 128
"""A shell, sudo or systemd-run exits with this plus the signal that ended its command."""
_WINDOWS = {
    0xC0000005: "SIGSEGV",  # access violation
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",  # integer division by zero
    0xC0000409: "SIGABRT",  # abort(), or a guard page that was overrun
}


def crash_name(exit_code: int) -> str | None:
    """The signal by which native code ended the process, as `SIGSEGV`; None for any other end."""
    name = signal_name(exit_code)
    return name if name in _CRASHES else None


def signal_name(exit_code: int) -> str | None:
    """The signal that ended a process with this exit code, as `subprocess` or a shell tells it."""
    if exit_code & 0xFFFFFFFF in _WINDOWS:
        return _WINDOWS[exit_code & 0xFFFFFFFF]
    number = -exit_code if exit_code < 0 else exit_code - _SHELL
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def died(what: str, exit_code: int | None) -> str:
    """The sentence for a process that ended before it was done; `what` names what it was doing."""
    name = None if exit_code is None else signal_name(exit_code)
    if name is None:
        return f"{what}: the process ended with exit code {exit_code} before it was done"
    if name == "SIGKILL":
        return (
            f"{what}: the process was killed (SIGKILL), as the kernel does where memory is short: "
            "lower --memory-budget, or end other programs"
        )
    if name in _CRASHES:
        return (
            f"{what}: native code ended the process ({name}): most often the library was built "
            "for another processor; build it again here with `pip install --no-cache-dir "
            "--force-reinstall --no-deps llama-cpp-python`; PYTHONFAULTHANDLER=1 shows where "
            "it was"
        )
    return f"{what}: the process was ended by {name} before it was done"
