"""Finds where a file is mapped in this process, and copies to memory what onnxruntime has mapped.

Only Linux tells where a file is mapped; elsewhere nothing is found and nothing is copied.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.errors import WeightReadError
from edgespec.paging.reader import read_at

_MAPS = Path("/proc/self/maps")
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p ([0-9a-f]+) ")
_MOVE_TO = 7
"""MREMAP_MAYMOVE, MREMAP_FIXED, and MREMAP_DONTUNMAP of Linux 5.7: no other thread's memory comes
to lie where the pieces were."""
_PIECE_BYTES = 1 << 20
"""Bytes that are there twice for a moment."""


def mapped_ranges(ending: str) -> Sequence[tuple[int, int, int]]:
    """Address, offset in the file and bytes of each private writable mapping of a file whose path
    ends so.

    It is found by its name, as some file systems report other numbers of devices.
    """
    if sys.platform != "linux":
        return []
    found = []
    for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if line.endswith(ending) and (matched := _MAPPED.match(line)):
            start, end, offset = (int(part, 16) for part in matched.groups())
            found.append((start, offset, end - start))
    return found


def copy_mapped(file: Path) -> None:
    """Put memory with the same bytes in place of what is mapped of a file.

    Otherwise a file that is cut short ends the process in the middle of a pass, and one that is
    written to changes weights there. Others may read the mapping meanwhile: the kernel exchanges it
    in one step. Raises WeightReadError.
    """
    if sys.platform != "linux":
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    ranges = mapped_ranges(f" {file.resolve()}")
    try:
        with file.open("rb", buffering=0) as opened:
            for address, offset, nbytes in ranges:
                with mmap.mmap(-1, nbytes, flags=flags) as copy:
                    _exchange(address, offset, copy, opened.fileno())
    except OSError as error:
        raise WeightReadError(f"reading {file} failed: {error.strerror}") from error


def _exchange(address: int, offset: int, copy: mmap.mmap, descriptor: int) -> None:
    """Read a range of a file into `copy`, and move each piece to where it is mapped.

    A file that has become shorter leaves zeros.
    """
    libc = ctypes.CDLL(None)
    libc.mremap.restype = ctypes.c_void_p
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mremap.argtypes = [pointer, size, size, ctypes.c_int, pointer]
    source = int(np.frombuffer(copy, np.uint8).ctypes.data)
    for begin in range(0, len(copy), _PIECE_BYTES):
        with memoryview(copy)[begin : begin + _PIECE_BYTES] as into:
            n, done = len(into), 0
            while done < n and (got := read_at(descriptor, into[done:], offset + begin + done)):
                done += got
        if libc.mremap(source + begin, n, n, _MOVE_TO, address + begin) != address + begin:
            return  # an older kernel: the file stays mapped
