"""Replaces a memory measurement by the largest nearly equal one of earlier processes alike.

Processes that do the same differ: by hundredths of a MiB, as addresses are random, and by some of
the arenas of 1 MiB in which Python keeps objects, as these lie otherwise in them. That can be other
rounding steps of the plan. The largest of the same command makes plans reproducible. Does not know
how memory is measured.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any
from zlib import crc32

from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile

TOLERANCE_BYTES = 5 << 19
"""Measurements of one command that differ by less are taken as equal: two arenas, and some."""
MAX_COUNTS = 128
"""Measurements kept; each command with its models and settings has one."""

_counted: set[str] = set()
"""Commands that this process has counted: it may have grown since, as no other has yet."""


def stable_count(nbytes: int, command: str) -> int:
    """The largest measurement of a command within TOLERANCE_BYTES of `nbytes`, which is stored.

    `command` tells what the process is about to do; what it has imported is added. Without a cache
    folder it is always `nbytes`.
    """
    key = f"{crc32(' '.join([command, *sorted(sys.modules)]).encode(errors='replace')):08x}"
    with suppress(EdgespecError):
        file = JsonFile(cache_folder.folder(), "process-bytes")
        counts = _counts(file.read())
        known = counts.pop(key, 0)
        if abs(known - nbytes) < TOLERANCE_BYTES:
            nbytes = max(known, nbytes)
        if nbytes != known and key not in _counted:
            file.write(dict([*counts.items(), (key, nbytes)][-MAX_COUNTS:]))
    _counted.add(key)
    return nbytes


def _counts(content: Any) -> dict[str, int]:
    """Measurements in the file's content by command; none if it is missing or damaged."""
    with suppress(AttributeError, ValueError, TypeError, OverflowError):
        return {str(key): int(n) for key, n in content.items() if 0 < int(n) < 1 << 50}
    return {}
