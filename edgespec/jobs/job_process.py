"""The process of one job: reads a pickled call from stdin, writes its result or error to stdout.

It is a fresh interpreter, so that jobs share no memory, caches or threads.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

from edgespec.errors import EdgespecError


def main(launcher: int) -> None:
    """Run one job of the process `launcher`; EdgespecError, OSError and MemoryError are reported as
    its result."""
    end_with(launcher)
    outcome: tuple[Any, EdgespecError | None]
    try:
        call = pickle.load(sys.stdin.buffer)
        outcome = call(), None
    except EdgespecError as error:
        outcome = None, error
    except (OSError, MemoryError) as error:
        outcome = None, EdgespecError(str(error))
    sys.stdout.buffer.write(pickle.dumps(outcome))


def end_with(parent: int) -> None:
    """Let Linux kill this process when its parent is killed, or exit if it was already."""
    if sys.platform == "linux":
        import ctypes

        kill_with_parent = 1
        ctypes.CDLL(None).prctl(kill_with_parent, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
