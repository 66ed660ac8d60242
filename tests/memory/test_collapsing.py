"""Resident memory is gathered in huge pages, and none is added."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.memory.collapsing import collapse_resident

SETTINGS = Path("sys/kernel/mm/transparent_hugepage")
HUGE_FILE = Path("/", SETTINGS, "hpage_pmd_size")
COLLAPSED = """
import mmap, re, sys
from pathlib import Path
import numpy as np
from edgespec.memory.collapsing import collapse_resident

huge_bytes, is_stopped = int(sys.argv[1]), sys.argv[2] == "stopped"
mapping = mmap.mmap(-1, 5 * huge_bytes, flags=mmap.MAP_PRIVATE)
mapping.madvise(mmap.MADV_NOHUGEPAGE)
whole = np.frombuffer(mapping, np.uint8)
begin = -whole.ctypes.data % huge_bytes
memory = whole[begin : begin + 4 * huge_bytes]  # of which one page is not resident
content = np.arange(len(memory)) % 251
hole = slice(huge_bytes + mmap.PAGESIZE, huge_bytes + 2 * mmap.PAGESIZE)
memory[: hole.start] = content[: hole.start]
memory[hole.stop :] = content[hole.stop :]
mapping.madvise(mmap.MADV_HUGEPAGE)

def figures():
    # of the mapping that holds the memory: resident bytes and those in huge pages
    for part in re.split("(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())[1:]:
        first, end = (int(one, 16) for one in part.split()[0].split("-"))
        if first <= memory.ctypes.data < end:
            return [1024 * int(re.search(f"(?m)^{name}: +(\\\\d+)", part)[1])
                    for name in ("Rss", "AnonHugePages")]

before = figures()
n_made = collapse_resident(lambda: is_stopped)
content[hole] = 0
print(n_made, figures()[0] - before[0], (figures()[1] - before[1]) // huge_bytes,
      (memory == content).all())
"""


def collapsed(how: str) -> list[str]:
    if sys.platform != "linux" or not HUGE_FILE.exists():
        pytest.skip("this kernel has no huge pages")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("Linux before 6.1 makes no huge pages of memory that is there")
    if "[never]" in (HUGE_FILE.parent / "enabled").read_text():
        pytest.skip("this machine is set to make no huge pages")
    command = [sys.executable, "-c", COLLAPSED, HUGE_FILE.read_text(), how]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_huge_pages_are_made_where_all_their_pages_are_resident() -> None:
    """Three of four, since the page that is missing would have to be added; nothing is changed."""
    n_made, added_bytes, n_huge, is_equal = collapsed("whole")
    assert (added_bytes, n_huge, is_equal) == ("0", "3", "True")
    assert int(n_made) >= 3


@pytest.mark.slow
def test_nothing_is_made_once_loading_is_stopped() -> None:
    assert collapsed("stopped") == ["0", "0", "0", "True"]


@pytest.mark.parametrize("enabled", [None, "always madvise [never]\n"])
def test_nothing_is_made_where_the_kernel_has_none_or_is_told_to_make_none(
    enabled: str | None, tmp_path: Path
) -> None:
    if enabled:
        (tmp_path / SETTINGS).mkdir(parents=True)
        (tmp_path / SETTINGS / "hpage_pmd_size").write_text("2097152\n")
        (tmp_path / SETTINGS / "enabled").write_text(enabled)
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/self").symlink_to("/proc/self")
    assert collapse_resident(root=tmp_path) == 0
