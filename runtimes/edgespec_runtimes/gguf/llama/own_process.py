"""Runs a small program in a process of its own, because it may crash, hang or take memory.

Knows how it is started and that it is gone afterwards; not what it is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class NoAnswer(Exception):
    """It could not be started, or did not end. The message says which."""


def run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """What it wrote to stdout, and how it ended. Raises NoAnswer."""
    try:
        return subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"it had not ended after {timeout_s:.0f} s") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoAnswer(f"no process could be started: {error}") from error


def missing_interpreter() -> str | None:
    """Why no interpreter of ours can be asked. An application's executable is none."""
    executable = Path(sys.executable or "")
    if getattr(sys, "frozen", False) or not executable.name.lower().startswith(("python", "pypy")):
        return "this application comes without a Python interpreter that could be started"
    return None
