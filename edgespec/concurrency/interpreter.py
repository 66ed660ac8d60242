"""Commands that run this Python interpreter in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path


def is_available() -> bool:
    """True if this process is run by a Python interpreter that can be started again, which a
    frozen application comes without."""
    name = Path(sys.executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def python(*arguments: str) -> list[str]:
    """The command of an interpreter with these arguments.

    It imports nothing from the current folder, where somebody else's files may have any name:
    with -m and -c Python looks there first.
    """
    return [sys.executable, "-P", *arguments]
