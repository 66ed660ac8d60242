"""Replaces a memory measurement by the nearly equal one of an earlier process.

Two processes that do the same differ: by hundredths of a MiB, as addresses are random, and by one
of the arenas of 1 MiB in which Python keeps objects, as the order of sets is. That can be another
rounding step of the plan. Reusing an earlier process's measurement makes plans reproducible. Does
not know how memory is measured.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile

TOLERANCE_BYTES = 5 << 18
"""Measurements that differ by less are taken as equal: an arena, and some; the headroom of a plan
is three times as much."""
MAX_COUNTS = 64
"""Measurements kept; each command with its models and settings has one."""


def stable_count(nbytes: int) -> int:
    """The nearest earlier measurement within TOLERANCE_BYTES, otherwise `nbytes`, which is stored.

    Without a cache folder it is always `nbytes`.
    """
    with suppress(EdgespecError):
        file = JsonFile(cache_folder.folder(), "process-bytes")
        counts = _counts(file.read())
        nearest = min(counts, key=lambda count: abs(count - nbytes), default=None)
        if nearest is not None and abs(nearest - nbytes) < TOLERANCE_BYTES:
            return nearest
        file.write([*counts, nbytes][-MAX_COUNTS:])
    return nbytes


def _counts(content: Any) -> list[int]:
    """Measurements in the file's content; none if it is missing or damaged."""
    with suppress(ValueError, TypeError, OverflowError):
        return [int(count) for count in content if 0 < int(count) < 1 << 50]
    return []
