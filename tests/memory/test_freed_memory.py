"""Freed memory goes back to the system, whichever thread it was used in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgespec.memory import heap, process
from edgespec.models.embedded import embedded_pair
from edgespec.session import session
from edgespec.settings.config import LoadSettings

USED_IN_A_THREAD = """
import ctypes, threading
from edgespec.memory import heap, process

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
taken = []

def use():
    libc.free(libc.malloc(30 << 20))  # from here on glibc keeps up to 60 MiB at a heap's end
    before = process.process_rss_bytes()
    blocks = [libc.malloc(1 << 20) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
    taken.append(process.process_rss_bytes() - before)
    heap.trim_heap_top()
    taken.append(process.process_rss_bytes() - before)

thread = threading.Thread(target=use)
thread.start()
thread.join()
print(*(nbytes >> 20 for nbytes in taken))
"""


FREED_BETWEEN_OTHERS = """
import ctypes
from edgespec.memory import heap, process

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
libc.free(libc.malloc(30 << 20))  # from here on glibc takes blocks of this size from a heap

def kept_bytes(nbytes=2 << 20):
    before = process.process_rss_bytes()
    blocks = [libc.malloc(nbytes) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, nbytes)
    for block in blocks[::2]:
        libc.free(block)
    return process.process_rss_bytes() - before

usual = kept_bytes()
with heap.large_blocks_mapped():
    mapped = kept_bytes(3 << 20)  # larger than the holes that are there
print(usual >> 20, mapped >> 20, kept_bytes(4 << 20) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heaps")
def test_large_blocks_freed_between_others_are_handed_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_BETWEEN_OTHERS], capture_output=True, text=True, check=True
    )
    usual_mib, mapped_mib, afterwards_mib = map(int, done.stdout.split())
    assert usual_mib >= 38
    assert mapped_mib <= 32
    assert afterwards_mib >= 78


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heaps")
def test_the_free_end_of_a_threads_heap_is_handed_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", USED_IN_A_THREAD], capture_output=True, text=True, check=True
    )
    kept_mib, returned_mib = map(int, done.stdout.split())
    assert kept_mib >= 19
    assert returned_mib <= 2


def test_a_plan_counts_no_memory_that_measuring_the_models_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contexts of a model of 44 layers left 14 MiB at a heap's end, which their rows count, too."""
    settings = LoadSettings(model=embedded_pair().target, memory_budget="8GiB")
    session.plan(settings)  # the runtime takes the function by name when it is imported
    calls = []

    def footprint_bytes() -> int:
        calls.append("counted")
        return 64 << 20

    monkeypatch.setattr(heap, "trim_heap_top", lambda: calls.append("returned"))
    monkeypatch.setattr(process, "footprint_bytes", footprint_bytes)
    session.plan(settings)
    assert calls == ["returned", "counted"]
