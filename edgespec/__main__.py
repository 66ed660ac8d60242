"""Where the process begins, as `edgespec` and as `python -m edgespec`."""

from __future__ import annotations

import sys


def main() -> int:
    """The command line; Ctrl-C during its imports is no traceback either."""
    try:
        from edgespec import cli
    except KeyboardInterrupt:
        sys.stderr.write("edgespec: error: interrupted\n")
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
