"""Resident pages of the files that libraries are mapped from, and how they are let go of.

A page that is touched maps its neighbours too: 64 KiB of them, or since Linux 6.18 the whole block
of the page cache that holds it, which has megabytes where a file has just been written. Mappings
are cut into pieces, which such a block does not exceed: what is resident no longer depends on the
cache. Most of it is needed only while modules are imported.
Linux only; elsewhere nothing is known and nothing is let go of.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
LARGE_LIBRARY_BYTES = 48 * MIB
"""Mapped size from which on a library is left alone and counts by its resident bytes: it holds
kernels for many GPUs, like cuBLAS, or shaders, and a run touches few of them. onnxruntime's library
has 29 MiB."""
HARDLY_TOUCHED = re.compile(r"(lib[^/]*(openblas|gfortran|quadmath)|onnx_cpp2py|_ml_dtypes)[^/]*$")
"""Libraries that count by their resident bytes, too: numpy's kernels for all processors, which
edgespec does not multiply with (1 of 30 MiB stays resident), and those that read ONNX graphs, which
only planning does (0 of 8 MiB)."""
PIECE_BYTES = 256 << 10
"""Most bytes that one touched page makes resident. Pieces of 64 KiB to 1 MiB leave equally much
resident, pieces of 2 MiB as much as whole mappings."""

_ROOT = Path("/")
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n"
    r"(?:[A-Z].*\n)*?Rss: +(\d+) kB\n(?:[A-Z].*\n)*?Anonymous: +(\d+) kB$",
    re.MULTILINE,
)
"""A mapping's first line and, of two dozen more, those with its resident and its changed pages."""


@dataclass(slots=True)
class LibraryMapping:
    """A range of addresses that is mapped from a file with code."""

    begin: int
    end: int
    access: str
    path: str
    resident_bytes: int
    """Bytes of the file itself; not of copies that this process has changed."""
    changed_bytes: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def mappings(root: Path = _ROOT) -> Sequence[LibraryMapping]:
    """The mappings of all libraries of this process that are not LARGE_LIBRARY_BYTES."""
    found: list[LibraryMapping] = []
    text = (root / "proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    for begin, end, access, path, resident, changed in _MAPPING.findall(text):
        changed_bytes = int(changed) * 1024
        own_bytes = int(resident) * 1024 - changed_bytes
        found.append(
            LibraryMapping(int(begin, 16), int(end, 16), access, path, own_bytes, changed_bytes)
        )
    with_code = {one.path for one in found if "x" in one.access and one.path.startswith("/")}
    sizes = dict.fromkeys(with_code, 0)
    for one in found:
        if one.path in sizes:
            sizes[one.path] += one.nbytes
    return [one for one in found if sizes.get(one.path, LARGE_LIBRARY_BYTES) < LARGE_LIBRARY_BYTES]


def release() -> None:
    """Let go of the resident pages of libraries that this process has not changed.

    Those that are still needed are mapped again from the page cache when they are touched.
    """
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return
    libc = ctypes.PyDLL(None)  # with the GIL: a thread that waits for it may hold the loader's lock
    if not hasattr(libc, "dl_iterate_phdr"):
        return
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    clean = [m for m in mappings() if not m.changed_bytes and m.access[1::2] == "-p"]
    clean = [m for m in clean if m.resident_bytes or m.nbytes > PIECE_BYTES]
    begins, ends = [m.begin for m in clean], [m.end for m in clean]  # in order, as they lie

    def let_go(info: Any, *_: object) -> int:
        """Called with each library while the loader's lock keeps it mapped."""
        # all at first: the headers themselves lie in such a segment
        for begin, end in list(_constant_segments(info.contents)):
            for one in clean[bisect_left(begins, begin) : bisect_right(ends, end)]:
                libc.madvise(one.begin, one.nbytes, _MADV_DONTNEED)
                if one.nbytes > PIECE_BYTES:
                    _cut(libc, one)
        return 0

    libc.dl_iterate_phdr(_Callback(let_go), None)


def _cut(libc: ctypes.PyDLL, one: LibraryMapping) -> None:
    """Cut a mapping into pieces: every second one has a flag that its neighbours lack.

    Left out of core dumps are constant pages of files anyway. A piece that is cut again stays.
    """
    step = 2 * PIECE_BYTES
    for begin in range(one.begin // step * step, one.end, step):
        flagged_from = max(begin, one.begin)
        if flagged_from < (end := min(begin + PIECE_BYTES, one.end)):
            libc.madvise(flagged_from, end - flagged_from, _MADV_DONTDUMP)


_MADV_DONTNEED, _MADV_DONTDUMP = 4, 16
_PT_LOAD, _PF_W = 1, 2


class _ProgramHeader(ctypes.Structure):
    """`Elf64_Phdr`."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("offset", "vaddr", "paddr", "filesz", "memsz")),
        ("align", ctypes.c_uint64),
    ]


class _Library(ctypes.Structure):
    """The first fields of `struct dl_phdr_info`."""

    _fields_ = [
        ("addr", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.POINTER(_ProgramHeader)),
        ("n_headers", ctypes.c_uint16),
    ]


_Callback = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
)


def _constant_segments(library: _Library) -> Iterator[tuple[int, int]]:
    """Addresses, in whole pages, of the segments that are not writable."""
    for index in range(library.n_headers):
        header = library.headers[index]
        if header.type == _PT_LOAD and not header.flags & _PF_W:
            begin = library.addr + header.vaddr
            yield (
                begin // mmap.PAGESIZE * mmap.PAGESIZE,
                -(-(begin + header.filesz) // mmap.PAGESIZE) * mmap.PAGESIZE,
            )
