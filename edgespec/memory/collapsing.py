"""Makes huge pages of memory that stays, of which the processor looks up fewer addresses.

Linux only; elsewhere, and where the kernel has no huge pages, nothing changes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

_ROOT = Path("/")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 ", re.MULTILINE)
"""Private memory that no file is behind."""
_MADV_COLLAPSE = 25
_PRESENT = np.uint64(63)
"""Bit of a page's entry in /proc/self/pagemap that says whether it is resident."""
_ENTRY_BYTES = 8


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
        pages = (root / "proc/self/pagemap").open("rb", buffering=0)
    except (OSError, ValueError):
        return 0
    libc, n_made = ctypes.CDLL(None, use_errno=True), 0
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with pages:
        for found in _MAPPING.findall(maps):
            begin, end = (int(address, 16) for address in found)
            begin = -(-begin // huge_bytes) * huge_bytes
            for address in range(begin, end - huge_bytes + 1, huge_bytes):
                if is_stopped():
                    return n_made
                pages.seek(address // mmap.PAGESIZE * _ENTRY_BYTES)
                entries = pages.read(huge_bytes // mmap.PAGESIZE * _ENTRY_BYTES)
                if not (np.frombuffer(entries, np.uint64) >> _PRESENT).all():
                    continue
                if not libc.madvise(address, huge_bytes, _MADV_COLLAPSE):
                    n_made += 1
                elif ctypes.get_errno() == errno.ENOMEM:
                    return n_made  # no huge page is free
    return n_made
