"""One count of a process's memory for all processes that do the same.

Addresses are random, and with them some pages that are touched: two processes that do the same
differ by hundredths of a MiB, which is enough for another step of a plan. So a count that an
earlier process had, and that is as good as equal, is taken for this one's. Knows nothing of how
processes count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile

ALIKE_BYTES = 128 << 10
"""Counts are as good as equal that differ by less; two dozen KiB were seen."""
MOST_COUNTS = 64
"""Remembered counts; each command with its models and settings has one."""


def stable_count(nbytes: int) -> int:
    """The nearest count of earlier processes that is as good as equal, or `nbytes`, which later
    ones find then. Without a cache folder it is always `nbytes`."""
    with suppress(EdgespecError):
        file = JsonFile(cache_folder.folder(), "process-bytes")
        counts = _counts(file.read())
        nearest = min(counts, key=lambda count: abs(count - nbytes), default=None)
        if nearest is not None and abs(nearest - nbytes) < ALIKE_BYTES:
            return nearest
        file.write([*counts, nbytes][-MOST_COUNTS:])
    return nbytes


def _counts(content: Any) -> list[int]:
    """No counts where the file is not there or damaged."""
    with suppress(ValueError, TypeError, OverflowError):
        return [int(count) for count in content if 0 < int(count) < 1 << 50]
    return []
