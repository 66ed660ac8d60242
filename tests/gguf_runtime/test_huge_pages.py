"""Huge pages of resident weights."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.huge_pages import (
    HUGE_BYTES,
    SHARED_BYTES,
    huge_pages,
    huge_range,
)

MOST_MAPPINGS = -4
"""glibc's M_MMAP_MAX."""
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize(
    ("begin", "nbytes", "found"),
    [
        (0, HUGE_BYTES, (0, HUGE_BYTES)),
        (1, 3 * HUGE_BYTES, (HUGE_BYTES, 3 * HUGE_BYTES)),
        (HUGE_BYTES - 1, HUGE_BYTES + 1, (HUGE_BYTES, 2 * HUGE_BYTES)),
    ],
)
def test_only_pages_within_the_range_are_huge(
    begin: int, nbytes: int, found: tuple[int, int]
) -> None:
    assert huge_range(begin, nbytes) == found


def test_a_range_that_holds_no_huge_page_has_none() -> None:
    begin, end = huge_range(1, HUGE_BYTES)
    assert begin >= end


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not THP.exists(), reason="no huge pages here")
def test_what_llama_cpp_allocates_in_the_block_for_itself_alone_has_huge_pages() -> None:
    """In a process of its own: a heap with a free block of that size gives that, and advice there
    had outlived the weights."""
    program = "import test_huge_pages; test_huge_pages.tell_what_is_huge()"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "False", "False", "False"]


def tell_what_is_huge() -> None:
    """Print whether what is allocated has huge pages: in the block, as a mapping and as part of a
    heap, outside of it, and in a heap as large as a mapping."""
    library = abi.library("ggml-base")
    library.ggml_aligned_malloc.restype = ctypes.c_void_p
    library.ggml_aligned_malloc.argtypes = [ctypes.c_size_t]
    library.ggml_aligned_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    path = str(abi.library_file("ggml-base"))
    for is_inside, size, is_mapped in (
        (True, SHARED_BYTES + HUGE_BYTES, True),
        (True, SHARED_BYTES, True),
        (False, SHARED_BYTES + HUGE_BYTES, True),
        (True, SHARED_BYTES + HUGE_BYTES, False),
    ):
        if not is_mapped:
            ctypes.CDLL(None).mallopt(MOST_MAPPINGS, 0)
        block: AbstractContextManager[None] = huge_pages(path) if is_inside else nullcontext()
        with block:
            address = library.ggml_aligned_malloc(size)
        print("hg" in flags_at(address + size // 2))
        library.ggml_aligned_free(address, size)


def flags_at(address: int) -> list[str]:
    """The kernel's flags of the mapping that holds an address."""
    is_here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            is_here = begin <= address < end
        elif is_here and first == "VmFlags:":
            return rest
    raise AssertionError(f"no mapping holds {address:#x}")
