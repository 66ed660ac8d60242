"""The runtime sets how long GOMP's waiting threads spin, in processes that allow it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from edgespec.concurrency.spinning import LONG, SHORT, SpinRule
from edgespec_runtimes.gguf.llama import openmp
from edgespec_runtimes.gguf.llama.bindings import lib

MAPS = """\
7f00-7f10 r-xp 00000000 fd:00 1 /usr/lib/libgomp.so.1.0.0
7f10-7f18 r--p 00010000 fd:00 1 /usr/lib/libgomp.so.1.0.0
7f18-7f20 rw-p 00018000 fd:00 1 /usr/lib/libgomp.so.1.0.0
7f20-7f28 rw-p 00000000 00:00 0
7f28-7f30 rw-p 00000000 00:00 0
7f40-7f48 rw-p 00000000 fd:00 2 /usr/lib/libm.so.6
7f48-7f50 rw-p 00000000 00:00 0
7f50-7f58 rw-p 00000000 00:00 0 [heap]
"""


def counts_waiting() -> bool:
    try:
        openmp.ThreadTimes().waited_s()
    except OSError:
        return False
    return lib is not None and "libgomp" in Path("/proc/self/maps").read_text()


needs_gomp = pytest.mark.skipif(
    not counts_waiting(), reason="llama.cpp's threads are not GOMP's, or nobody counts their waits"
)


def test_the_variables_of_gomp_are_in_its_writable_mappings() -> None:
    assert openmp.writable_ranges(MAPS) == [(0x7F18, 0x7F20), (0x7F20, 0x7F28)]


def test_a_process_that_chose_its_own_number_is_left_alone(monkeypatch: Any) -> None:
    find = openmp.spinning_threads.__wrapped__
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert find() is None
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    assert find() is None


@pytest.mark.parametrize(("is_resident", "spins", "turns"), [
    (True, True, LONG), (True, False, SHORT), (False, True, SHORT)
])  # fmt: skip
@needs_gomp
def test_only_models_in_memory_spin_long(is_resident: bool, spins: bool, turns: int) -> None:
    rule, place = SpinRule(), ctypes.c_uint64()
    rule.spins = spins
    with openmp.SpinningThreads(place, rule).computing(is_resident):
        assert place.value == turns
