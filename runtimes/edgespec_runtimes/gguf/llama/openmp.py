"""Sets how long OpenMP's waiting threads spin, for each pass, where the process allows it.

llama.cpp's threads meet after every operation. A thread that sleeps meanwhile gives its core away
and wakes late; one that spins keeps the core that the awaited thread may need. GOMP reads the
number of turns from the environment once. It is changed only where it is `SHORT`, as the command
line sets it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.concurrency.spinning import LONG, SHORT, SpinRule

_MAPS, _SCHEDSTAT = Path("/proc/self/maps"), "/proc/thread-self/schedstat"


class SpinningThreads:
    """The turns that GOMP's waiting threads spin, in the whole process."""

    def __init__(self, turns: ctypes.c_uint64, rule: SpinRule) -> None:
        """`turns` is where GOMP keeps the number."""
        self._turns = turns
        self._rule = rule
        self._times = ThreadTimes()

    @contextmanager
    def computing(self, is_resident: bool) -> Iterator[None]:
        """Context manager for a pass of a model with several threads.

        A pass that waits for weights gives up its cores soon. Others are judged by how long their
        thread waited for a core.
        """
        if not is_resident:
            self._turns.value = SHORT
            yield
            return
        self._turns.value = LONG if self._rule.spins else SHORT
        waited_before, began = self._times.waited_s(), time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._rule.see_pass(end, end - began, self._times.waited_s() - waited_before)


class ThreadTimes(threading.local):
    """Times that the kernel counts of each thread, in a file that stays open: opening is slow."""

    def __init__(self) -> None:
        """Raises OSError where the kernel does not count."""
        self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
        weakref.finalize(threading.current_thread(), os.close, self._file)

    def waited_s(self) -> float:
        """Seconds that this thread was ready to run and waited for a core."""
        if sys.platform == "win32":
            return 0.0
        return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9


@functools.cache
def spinning_threads() -> SpinningThreads | None:
    """GOMP's waiting threads; None if the process does not allow changes, or they cannot be made.

    Call it after llama.cpp's libraries were loaded.
    """
    if os.environ.get("GOMP_SPINCOUNT") != str(SHORT):
        return None
    with suppress(OSError, ValueError, IndexError):
        found = [
            place
            for begin, end in writable_ranges(_MAPS.read_text(encoding="utf-8"))
            for place in _places_of(SHORT, begin, end)
        ]
        if len(found) == 1:
            return SpinningThreads(ctypes.c_uint64.from_address(found[0]), SpinRule())
    return None


def writable_ranges(maps: str) -> list[tuple[int, int]]:
    """Address ranges of GOMP's variables in the text of /proc/self/maps: the writable mappings of
    its file, and the one without a file that follows directly."""
    found: list[tuple[int, int]] = []
    library_end = 0
    for line in maps.splitlines():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        is_library = bool(name) and "libgomp" in Path(name[0]).name
        if access.startswith("rw") and (is_library or (not name and begin == library_end)):
            found.append((begin, end))
        library_end = end if is_library else 0
    return found


def _places_of(number: int, begin: int, end: int) -> list[int]:
    """Addresses of aligned 64-bit numbers of this value."""
    words = (ctypes.c_uint64 * ((end - begin) // 8)).from_address(begin)
    return [begin + 8 * n for n, word in enumerate(words) if word == number]
