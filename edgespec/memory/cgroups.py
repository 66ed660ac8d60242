"""Limits of the Linux control groups (versions 1 and 2) of this process: memory and CPU quota.

Reads the kernel's files below `root` and changes nothing. Other systems have no groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 1 << 62
"""Limits from here on mean no limit: version 1 reports the largest number of pages instead."""


def memory_limit(root: Path) -> int:
    """Least memory limit of this process's group and of all its ancestors."""
    return min((_limit_bytes(*group) for group in groups(root, "memory")), default=UNLIMITED)


def memory_left(root: Path) -> int:
    """Memory that these groups leave; page cache that the kernel can drop counts as free."""
    return min((_left_bytes(*group) for group in groups(root, "memory")), default=UNLIMITED)


def cpu_quota(root: Path) -> float:
    """CPU time per second that this process may use, in cores."""
    return min((_quota(*group) for group in groups(root, "cpu")), default=UNLIMITED)


def _limit_bytes(folder: Path, version: int) -> int:
    names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    texts = (_read(folder / name).strip() for name in names)
    return min(int(text) if text.isdigit() else UNLIMITED for text in texts)


def _left_bytes(folder: Path, version: int) -> int:
    limit = _limit_bytes(folder, version)
    if limit >= UNLIMITED:
        return UNLIMITED
    stat = table(folder / "memory.stat")
    if version == 2:
        used = "memory.current"
        cache = ("active_file", "inactive_file")
        busy = ("file_mapped", "file_dirty", "file_writeback")
    else:  # names without `total_` exclude the groups below, whose usage counts here
        used = "memory.usage_in_bytes"
        cache = ("total_active_file", "total_inactive_file")
        busy = ("total_mapped_file", "total_dirty", "total_writeback")
    cached, kept = (sum(stat.get(name, 0) for name in names) for names in (cache, busy))
    return limit - int(_read(folder / used) or 0) + max(0, cached - kept)


def table(path: Path) -> dict[str, int]:
    """Values by name of a kernel file with lines `name value` or `name: value kB`, in bytes."""
    numbers = {}
    for line in _read(path).splitlines():
        match = re.match(r"(\w+):?\s+(\d+)( kB)?$", line)
        if match:
            numbers[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return numbers


def _quota(folder: Path, version: int) -> float:
    if version == 2:
        fields = _read(folder / "cpu.max").split()
    else:
        fields = _read(folder / "cpu.cfs_quota_us").split()
        fields += _read(folder / "cpu.cfs_period_us").split()
    if len(fields) == 2 and fields[0].isdigit():
        return int(fields[0]) / int(fields[1])
    return UNLIMITED


def groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Folder and version of this process's groups that may have the controller, and of all their
    ancestors, where systems and containers mount them. A container may show its group alone, at
    the top; the path then names folders that do not exist."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            folder = top / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(top) and group.is_dir():
                    yield group, 1 if controllers else 2


def _read(path: Path) -> str:
    """Content of a kernel file; empty if it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
