"""Makes huge pages of memory that stays, of which the processor looks up fewer addresses.

Linux only; elsewhere, and where the kernel has no huge pages, nothing changes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path("/")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 ", re.MULTILINE)
"""Private memory that no file is behind."""
_MADV_COLLAPSE = 25
_PRESENT = np.uint64(63)
"""Bit of a page's entry in /proc/self/pagemap that says whether it is resident."""
_ENTRY_BYTES = 8
_WINDOW_PAGES = 1 << 16
"""Most pages that are looked at in one go."""


def collapse_resident(is_stopped: Callable[[], bool] = lambda: False, root: Path = _ROOT) -> int:
    """Make huge pages of the process's memory where all of their pages are resident.

    The process takes no more memory than before. Unlike advice, nothing of it stays behind where
    memory is freed and used again. Copies what it moves; ends early if `is_stopped`. Returns the
    number of huge pages.
    """
    settings = root / "sys/kernel/mm/transparent_hugepage"
    try:
        huge_bytes = int((settings / "hpage_pmd_size").read_text(encoding="utf-8"))
        if "[never]" in (settings / "enabled").read_text(encoding="utf-8"):
            return 0
        maps = (root / "proc/self/maps").read_text(encoding="utf-8", errors="replace")
        pagemap = os.open(root / "proc/self/pagemap", os.O_RDONLY)
    except (OSError, ValueError):
        return 0
    libc, n_made = ctypes.CDLL(None, use_errno=True), 0
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        for begin, end in _MAPPING.findall(maps):
            for address in _resident(pagemap, int(begin, 16), int(end, 16), huge_bytes):
                if is_stopped():
                    return n_made
                if not libc.madvise(address, huge_bytes, _MADV_COLLAPSE):
                    n_made += 1
                elif ctypes.get_errno() == errno.ENOMEM:
                    return n_made  # no huge page is free
    finally:
        os.close(pagemap)
    return n_made


def _resident(pagemap: int, begin: int, end: int, huge_bytes: int) -> Iterator[int]:
    """Addresses of the huge pages within a mapping all of whose pages are resident."""
    if sys.platform == "win32":
        return
    n_pages = huge_bytes // mmap.PAGESIZE
    step = max(1, _WINDOW_PAGES // n_pages) * huge_bytes
    end = end // huge_bytes * huge_bytes
    for at in range(-(-begin // huge_bytes) * huge_bytes, end, step):
        n_bytes = (min(at + step, end) - at) // mmap.PAGESIZE * _ENTRY_BYTES
        entries: Any = np.frombuffer(
            os.pread(pagemap, n_bytes, at // mmap.PAGESIZE * _ENTRY_BYTES), np.uint64
        )
        is_whole = (entries.reshape(-1, n_pages) >> _PRESENT).all(axis=1)
        yield from (at + int(i) * huge_bytes for i in np.flatnonzero(is_whole))
