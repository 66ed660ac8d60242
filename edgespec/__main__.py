"""Entry point of the process, as `edgespec` and as `python -m edgespec`."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130


def main() -> int:
    """The command line; Ctrl-C during its imports is no traceback either."""
    try:
        from edgespec.cli import entry

        exit_code = entry.main()
    except KeyboardInterrupt:
        sys.stderr.write("edgespec: error: interrupted\n")
        sys.stderr.flush()
        exit_code = _INTERRUPTED
    if exit_code == _INTERRUPTED:
        # CPython remembers an interrupt of an import and would end by the signal, not by the code
        os._exit(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
