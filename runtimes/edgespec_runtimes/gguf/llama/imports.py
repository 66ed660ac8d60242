"""Temporarily replaces functions that a loaded library imports; knows ELF, but no models.

Only the library's own entry in its global offset table changes, so calls from other libraries do
not. Linux only: elsewhere nothing is replaced, which callers can check.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

_DYN_ENTRY = struct.Struct("<qQ")
_RELA_ENTRY = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_SYM_SIZE = 24
_DT_STRTAB, _DT_STRSZ, _DT_SYMTAB = 5, 10, 6
_DT_JMPREL, _DT_PLTRELSZ, _DT_RELA, _DT_RELASZ = 23, 2, 7, 8
_LINKMAP = 2
"""`RTLD_DI_LINKMAP` of dlinfo."""
_patching = threading.RLock()


@contextmanager
def replaced_import(
    library: str,
    names: Sequence[str],
    signature: Any,
    replacement: Callable[..., Any],
    owner: ctypes.CDLL | None = None,
) -> Iterator[bool]:
    """In the block, `library` calls `replacement` in this thread instead of `names`: with the real
    function, which `owner` has (None: the C library), and its arguments.

    Yields False if the library has no such entry (another system or C library, a static build). One
    thread at a time replaces imports.
    """
    real = ctypes.cast(getattr(owner or ctypes.CDLL(None), names[0]), signature)
    thread = threading.get_ident()

    def call(*args: Any) -> Any:
        return replacement(real, *args) if threading.get_ident() == thread else real(*args)

    function = signature(call)
    with _patching:
        entries = import_entries(library, names)
        before = [entry.value for entry in entries]
        put_in(entries, function)
        try:
            yield bool(entries)
        finally:
            for entry, value in zip(entries, before, strict=True):
                entry.value = value


def import_entries(library: str, names: Collection[str]) -> list[ctypes.c_uint64]:
    """The entries through which `library` calls one of `names`, to read and to write; none where
    they cannot be replaced."""
    link = _link_map(library) if sys.platform == "linux" else None
    if link is None or sys.byteorder != "little" or struct.calcsize("P") != 8:
        return []
    slots = _slots_of(link.bias, link.dynamic, tuple(names))
    return [*map(ctypes.c_uint64.from_address, slots)] if all(map(_make_writable, slots)) else []


def put_in(entries: Sequence[ctypes.c_uint64], replacement: Any) -> None:
    """Let entries call `replacement`, a ctypes function that stays referenced by the caller."""
    for entry in entries:
        entry.value = ctypes.cast(replacement, ctypes.c_void_p).value or 0


def _make_writable(address: int) -> bool:
    """Make the page writable if full RELRO made it read-only; False if that fails."""
    if sys.platform == "win32":
        return False
    page = address & ~(mmap.PAGESIZE - 1)
    size, protection = ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE
    return not ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), size, protection)


class _LinkMap(ctypes.Structure):
    """`struct link_map`: address and dynamic section of a loaded library."""

    _fields_ = [
        ("bias", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_uint64),
    ]


def _link_map(library: str) -> _LinkMap | None:
    """The link map of a library; None if it is not loaded or the loader has none."""
    if sys.platform == "win32":
        return None
    found = ctypes.POINTER(_LinkMap)()
    try:
        handle = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)._handle
        failure = ctypes.CDLL(None).dlinfo(ctypes.c_void_p(handle), _LINKMAP, ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failure else found.contents


@functools.cache
def _slots_of(bias: int, dynamic: int, names: Sequence[str]) -> Sequence[int]:
    """The entries of the library that lies there (ELF64, little endian); all its tables are
    searched once, not in every pass that replaces an import."""
    at = dynamic
    table: dict[int, int] = {}
    while any(entry := _DYN_ENTRY.unpack(ctypes.string_at(at, _DYN_ENTRY.size))):
        table[entry[0]] = entry[1]
        at += _DYN_ENTRY.size

    def absolute(tag: int) -> int:
        # glibc rewrites these to absolute addresses, other loaders leave them relative
        return table[tag] if table[tag] >= bias else table[tag] + bias

    texts = ctypes.string_at(absolute(_DT_STRTAB), table[_DT_STRSZ])
    # in the table, a name may also be the end of a longer string
    patterns = (re.escape(name.encode()) + b"\\0" for name in names)
    found = [found.start() for pattern in patterns for found in re.finditer(pattern, texts)]
    starts = np.array(found, np.uint32)
    slots: list[int] = []
    for address_tag, size_tag in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if address_tag not in table or size_tag not in table:
            continue
        content = ctypes.string_at(absolute(address_tag), table[size_tag])
        relocations = np.frombuffer(content, _RELA_ENTRY)
        symbols = relocations["info"] >> np.uint64(32)
        n_symbols = int(symbols.max(initial=0)) + 1
        content = ctypes.string_at(absolute(_DT_SYMTAB), n_symbols * _SYM_SIZE)
        named = np.frombuffer(content, "<u4")[:: _SYM_SIZE // 4][symbols]
        wanted = (symbols > 0) & np.isin(named, starts, kind="table")
        slots += [bias + int(offset) for offset in relocations["offset"][wanted]]
    return slots
