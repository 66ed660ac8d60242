"""Commands that run this Python interpreter in a process of its own."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from threading import Event

from edgespec.errors import EdgespecError

_ACTING = "--edgespec-as-interpreter"
"""First argument of a frozen application that is to run a module instead of its own program."""
_acting = Event()


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
