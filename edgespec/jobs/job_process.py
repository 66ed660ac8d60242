"""The process of one job: reads a pickled call from stdin, writes its result or error to stdout.

It is a fresh interpreter, so that jobs share no memory, caches or threads.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from edgespec.errors import EdgespecError


def main() -> int:
    """Run one job; EdgespecError, OSError and MemoryError are reported as its result."""
    result: Any = None
    failure: EdgespecError | None = None
    try:
        call = pickle.load(sys.stdin.buffer)
        result = call()
    except EdgespecError as error:
        failure = error
    except (OSError, MemoryError) as error:
        failure = EdgespecError(str(error))
    sys.stdout.buffer.write(pickle.dumps((result, failure)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
