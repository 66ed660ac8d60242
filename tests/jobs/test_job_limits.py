"""Limits over a pretended kernel: what is written where, and that it is gone afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edgespec.jobs import limits
from edgespec.jobs.limits import ProcessLimits

BOTH = ProcessLimits(memory_bytes=1 << 20, read_bytes_per_s=3_000_000)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def disk(tmp_path: Path) -> tuple[Path, str]:
    """A pretended root whose sysfs knows the disk that holds `tmp_path`, and its number."""
    number = tmp_path.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    (tmp_path / "sys/dev/block" / name).mkdir(parents=True)
    write(tmp_path / "proc/self/mountinfo", "")
    return tmp_path, name


@pytest.fixture
def version_1(disk: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    root, _ = disk
    write(root / "proc/self/cgroup", "4:memory:/mine\n7:blkio:/\n")
    for folder in ("sys/fs/cgroup/memory/mine", "sys/fs/cgroup/blkio"):
        (root / folder).mkdir(parents=True)
    # the kernel's own files vanish with their group
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    return root


@pytest.fixture
def version_2(disk: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    root, _ = disk
    write(root / "proc/self/cgroup", "0::/user/me\n")
    (root / "sys/fs/cgroup/user/me").mkdir(parents=True)
    write(root / "sys/fs/cgroup/user/cgroup.controllers", "cpu io memory\n")
    write(root / "sys/fs/cgroup/user/cgroup.subtree_control", "memory\n")
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    return root


def groups(root: Path) -> list[Path]:
    return sorted(root.rglob("edgespec-bench-*"))


def test_version_1_gets_a_group_for_memory_and_one_for_reads(version_1: Path, disk):
    limiter, reasons = limits.find(BOTH, version_1, version_1)
    assert (limiter.name, reasons) == ("cgroup v1", [])
    with limiter.bind() as prefix:
        blkio, memory = groups(version_1)
        assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 20)
        rate = (blkio / "blkio.throttle.read_bps_device").read_text()
        assert rate == f"{disk[1]} 3000000"
        assert memory.parent == version_1 / "sys/fs/cgroup/memory/mine"
        assert [str(group / "cgroup.procs") for group in (memory, blkio)] == prefix[4:-1]
    assert groups(version_1) == []


def test_a_command_behind_the_prefix_joins_the_groups_before_it_starts(version_1: Path):
    limiter, _ = limits.find(BOTH, version_1, version_1)
    with limiter.bind() as prefix:
        shown = limits._output([*prefix, "sh", "-c", "echo $$"])
        for group in groups(version_1):
            assert (group / "cgroup.procs").read_text() == shown


def test_groups_are_removed_when_the_block_is_interrupted(version_1: Path):
    limiter, _ = limits.find(BOTH, version_1, version_1)
    with pytest.raises(KeyboardInterrupt), limiter.bind():
        raise KeyboardInterrupt
    assert groups(version_1) == []


def test_groups_that_a_killed_process_left_are_removed_by_the_next(version_1: Path):
    parent = version_1 / "sys/fs/cgroup/memory/mine"
    ended, living = (parent / f"edgespec-bench-{pid}" for pid in (1 << 22, os.getppid()))
    same_number = parent / f"edgespec-bench-{os.getpid()}"
    for folder in (ended, living, same_number):
        folder.mkdir()
    limiter, reasons = limits.find(BOTH, version_1, version_1)
    assert (limiter.name, reasons) == ("cgroup v1", [])
    assert groups(version_1) == [living]


def test_removing_waits_for_the_last_process(version_1: Path, monkeypatch: pytest.MonkeyPatch):
    limiter, _ = limits.find(ProcessLimits(memory_bytes=1 << 20), version_1, version_1)
    busy = [OSError(16, "busy")] * 2

    def rmdir(folder: Path) -> None:
        if busy:
            raise busy.pop()
        shutil.rmtree(folder)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    with limiter.bind():
        pass
    assert not busy
    assert groups(version_1) == []


def test_version_2_enables_the_controller_and_takes_it_back(version_2: Path, disk):
    limiter, reasons = limits.find(BOTH, version_2, version_2)
    assert limiter.name == "cgroup v2"
    assert reasons == ["cgroup v1: there is no memory hierarchy"]
    control = version_2 / "sys/fs/cgroup/user/cgroup.subtree_control"
    with limiter.bind():
        (group,) = groups(version_2)
        assert group.parent == version_2 / "sys/fs/cgroup/user"
        assert (group / "memory.max").read_text() == str(1 << 20)
        assert (group / "io.max").read_text() == f"{disk[1]} rbps=3000000"
        assert control.read_text() == "+io"
    assert groups(version_2) == []
    assert control.read_text() == "-io"


def test_without_any_way_everything_is_unlimited_and_the_reasons_are_told(disk):
    root, _ = disk
    write(root / "proc/self/cgroup", "")
    limiter, reasons = limits.find(BOTH, root, root)
    assert limiter is limits.UNLIMITED
    assert [reason.partition(":")[0] for reason in reasons] == ["cgroup v1", "cgroup v2"]
    with limiter.bind() as prefix:
        assert prefix == []


def test_a_partition_is_limited_by_its_disk(disk):
    root, name = disk
    folder = root / "sys/dev/block" / name
    folder.rmdir()
    real = root / "sys/devices/sda"
    write(real / "dev", "8:0\n")
    write(real / "sda1/partition", "1\n")
    folder.symlink_to(real / "sda1")
    assert limits.device_of(root, root) == "8:0"
