"""The process of one job: a pickled call comes in on stdin, its result or error goes out on stdout.

A fresh interpreter, so that no job inherits memory, caches or threads of another.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from edgespec.errors import EdgespecError


def main() -> int:
    """Answer one job. An error of ours, of the system or of memory is an answer, too."""
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
