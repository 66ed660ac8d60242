"""Limits the memory and disk bandwidth of a process by the first Linux mechanism that works here.

Mechanisms are cgroups version 1 and 2. A prefix of the command line starts a command inside, so
that limits hold from its first page on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgespec.errors import EdgespecError
from edgespec.memory import cgroups

_ROOT = Path("/")
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
"""Shell script that joins the groups of the given `cgroup.procs` files, then runs the command after
`--`."""
_GROUP_NAME = "edgespec-bench-"
"""Begins the name of a group, before the number of the process that limits another one."""
_REMOVE_TIMEOUT_S = 5.0
"""Time to remove a group, which exists until its last process has ended; I/O may delay that."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a process; None is no limit."""

    memory_bytes: int | None = None
    read_bytes_per_s: int | None = None

    def __bool__(self) -> bool:
        return self.memory_bytes is not None or self.read_bytes_per_s is not None


Binding = Callable[[], AbstractContextManager[list[str]]]
"""Sets up limits for one process and yields the prefix of its command line. The process must end
before the context, which removes the limits."""


@dataclass(frozen=True, slots=True)
class Limiter:
    """A mechanism that limits processes, one at a time."""

    name: str
    bind: Binding


UNLIMITED = Limiter("unlimited", lambda: nullcontext([]))


def find(limits: ProcessLimits, path: Path, root: Path = _ROOT) -> tuple[Limiter, list[str]]:
    """The first mechanism that works here, and the reasons why those before it do not.

    `path` is on the disk whose reads are limited. UNLIMITED if there is nothing to limit or nothing
    works.
    """
    if not limits:
        return UNLIMITED, []
    reasons = []
    for name, make in (("cgroup v1", _version_1), ("cgroup v2", _version_2)):
        try:
            limiter = Limiter(name, make(limits, path, root))
            with limiter.bind() as prefix:
                _output([*prefix, "true"])  # to see whether it works
        except (OSError, EdgespecError) as error:
            reasons.append(f"{name}: {getattr(error, 'strerror', None) or error}")
        else:
            return limiter, reasons
    return UNLIMITED, reasons


def device_of(path: Path, root: Path = _ROOT) -> str:
    """`major:minor` of the disk that holds `path`; limits apply to disks, not partitions.

    Raises EdgespecError if the file system has no block device.
    """
    if sys.platform == "win32":
        raise EdgespecError("reads can be limited on Linux only")
    number = path.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    if not os.major(number):  # btrfs, overlayfs: the mount names what it lies on
        name = _mounted_device(name, root) or name
    folder = root / "sys/dev/block" / name
    if not folder.exists():
        raise EdgespecError(f"{path} lies on no block device, whose reads could be limited")
    if (folder / "partition").exists():
        return (folder.resolve().parent / "dev").read_text(encoding="utf-8").strip()
    return name


def _mounted_device(number: str, root: Path) -> str | None:
    if sys.platform == "win32":
        return None
    mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number:
            source = Path(right.split()[1])
            with suppress(OSError):
                device = source.stat().st_rdev
                return f"{os.major(device)}:{os.minor(device)}" if device else None
    return None


@dataclass(frozen=True, slots=True)
class _Group:
    """A cgroup to be created below `parent`, and the contents of its files by name."""

    parent: Path
    files: tuple[tuple[str, str], ...]
    optional_files: tuple[tuple[str, str], ...] = ()
    """Files that are written only if the kernel has them."""


def _version_1(limits: ProcessLimits, path: Path, root: Path) -> Binding:
    groups = []
    if limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        files = (("memory.limit_in_bytes", size),)
        swap = (("memory.memsw.limit_in_bytes", size),)
        groups.append(_Group(_own_group(root, "memory", 1), files, swap))
    if limits.read_bytes_per_s is not None:
        rate = f"{device_of(path, root)} {limits.read_bytes_per_s}"
        files = (("blkio.throttle.read_bps_device", rate),)
        groups.append(_Group(_own_group(root, "blkio", 1), files))
    return lambda: _grouped(groups)


def _version_2(limits: ProcessLimits, path: Path, root: Path) -> Binding:
    own = _own_group(root, "", 2)
    # a group with processes cannot delegate controllers, so the new one is created beside it
    parent = own.parent if (own.parent / "cgroup.controllers").exists() else own
    files, optional_files = [], []
    requested = []
    if limits.memory_bytes is not None:
        requested.append("memory")
        files.append(("memory.max", str(limits.memory_bytes)))
        optional_files.append(("memory.swap.max", "0"))
    if limits.read_bytes_per_s is not None:
        requested.append("io")
        files.append(("io.max", f"{device_of(path, root)} rbps={limits.read_bytes_per_s}"))
    offered = (parent / "cgroup.controllers").read_text(encoding="utf-8").split()
    if missing := [name for name in requested if name not in offered]:
        raise EdgespecError(f"there is no controller {' and no '.join(missing)}")
    enabled = (parent / "cgroup.subtree_control").read_text(encoding="utf-8").split()
    lacking = [name for name in requested if name not in enabled]
    group = _Group(parent, tuple(files), tuple(optional_files))
    return lambda: _grouped([group], lacking)


def _own_group(root: Path, controller: str, version: int) -> Path:
    """The process's own group. Raises EdgespecError if there is no such hierarchy."""
    for folder, found in cgroups.groups(root, controller):
        if found == version:
            return folder
    raise EdgespecError(f"there is no {controller or 'unified'} hierarchy")


@contextmanager
def _grouped(groups: Sequence[_Group], lacking: Sequence[str] = ()) -> Iterator[list[str]]:
    """Create the groups, yield the command prefix, and remove them at the end."""
    with ExitStack() as cleanup:
        for name in lacking:
            control = groups[0].parent / "cgroup.subtree_control"
            control.write_text(f"+{name}", encoding="utf-8")
            cleanup.callback(_write_if_possible, control, f"-{name}")
        procs = []
        for group in groups:
            _remove_abandoned(group.parent)
            folder = group.parent / f"{_GROUP_NAME}{os.getpid()}"
            folder.mkdir()
            cleanup.callback(_remove, folder)
            for name, text in group.files:
                (folder / name).write_text(text, encoding="utf-8")
            for name, text in group.optional_files:
                if (folder / name).exists():
                    _write_if_possible(folder / name, text)
            procs.append(str(folder / "cgroup.procs"))
        yield ["/bin/sh", "-c", _ENTER, "sh", *procs, "--"]


def _remove_abandoned(parent: Path) -> None:
    """Remove groups of processes that were killed, and of an earlier one with this number."""
    for folder in parent.glob(f"{_GROUP_NAME}*"):
        with suppress(ValueError, OSError):  # it may be another program's
            pid = int(folder.name.removeprefix(_GROUP_NAME))
            if pid == os.getpid() or not psutil.pid_exists(pid):
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Remove a group; its last process may take a moment to end."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _write_if_possible(path: Path, text: str) -> None:
    with suppress(OSError):
        path.write_text(text, encoding="utf-8")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EdgespecError(lines[-1])
    return done.stdout
