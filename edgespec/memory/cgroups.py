"""Limits of the Linux control groups (versions 1 and 2) of this process: memory and CPU quota.

Reads the kernel's files below `root` and changes nothing. Other systems have no groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 1 << 62
"""Limits from here on mean no limit: version 1 reports the largest number of pages instead."""


def memory_groups(root: Path) -> list[MemoryGroup]:
    """Memory controllers of this process's group and of all its ancestors."""
    return [MemoryGroup(*group) for group in groups(root, "memory")]


def cpu_quota(root: Path) -> float:
    """CPU time per second that this process may use, in cores."""
    return min((_quota(*group) for group in groups(root, "cpu")), default=UNLIMITED)


class MemoryGroup:
    """The memory controller of one cgroup; versions 1 and 2 differ in the names of its files."""

    def __init__(self, folder: Path, version: int) -> None:
        self._folder = folder
        self._v2 = version == 2

    def limit_bytes(self) -> int:
        names = ("memory.max", "memory.high") if self._v2 else ("memory.limit_in_bytes",)
        return min(self._number(name, UNLIMITED) for name in names)

    def left_bytes(self) -> int:
        limit = self.limit_bytes()
        if limit >= UNLIMITED:
            return UNLIMITED
        return limit - self.used_bytes() + self._droppable_bytes()

    def used_bytes(self) -> int:
        return self._number("memory.current" if self._v2 else "memory.usage_in_bytes", 0)

    def _droppable_bytes(self) -> int:
        """Bytes of page cache that are neither mapped nor dirty."""
        stat = table(self._folder / "memory.stat")
        if self._v2:
            cache = ("active_file", "inactive_file")
            busy = ("file_mapped", "file_dirty", "file_writeback")
        else:  # names without `total_` exclude the groups below, whose usage counts here
            cache = ("total_active_file", "total_inactive_file")
            busy = ("total_mapped_file", "total_dirty", "total_writeback")
        used = sum(stat.get(name, 0) for name in busy)
        return max(0, sum(stat.get(name, 0) for name in cache) - used)

    def _number(self, name: str, default: int) -> int:
        text = _read(self._folder / name).strip()
        return int(text) if text.isdigit() else default


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
    """Folder and version of this process's cgroup and of all its ancestors."""
    for version, path in _memberships(root, controller):
        for mount_root, mount_point in _mounts(root, version, controller):
            # in a container the mount may begin inside the hierarchy, at the container's group
            below = path.removeprefix(mount_root.rstrip("/")) if _is_below(path, mount_root) else ""
            top = root / mount_point.lstrip("/")
            folder = top / below.lstrip("/")
            while True:
                yield folder, version
                if folder == top:
                    break
                folder = folder.parent


def _memberships(root: Path, controller: str) -> Iterator[tuple[int, str]]:
    """Version and path of this process's group in each hierarchy that may have the controller."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def _mounts(root: Path, version: int, controller: str) -> Iterator[tuple[str, str]]:
    """Path inside the hierarchy, and mount point, of each mount of a hierarchy."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mount_root, mount_point = left.split()[3:5]
        kind, *_, options = right.split()
        if (version == 2 and kind == "cgroup2") or (
            version == 1 and kind == "cgroup" and controller in options.split(",")
        ):
            yield _unescape(mount_root), _unescape(mount_point)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _unescape(field: str) -> str:
    """A field of mountinfo without its octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read(path: Path) -> str:
    """Content of a kernel file; empty if it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
