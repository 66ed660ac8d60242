"""Free memory, limits and cores as the machine and nested cgroups of both versions state them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.errors import BudgetError, Sentence
from edgespec.memory import process
from edgespec.memory.cgroups import cpu_quota
from edgespec.models.embedded import embedded_pair

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are a Linux thing")

MIB = 1 << 20
GIB = 1 << 30


class FakeMachine:
    """A fake root with 8 GiB, 6 GiB of it available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\n")

    def write(self, name: str, text: str | int) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))

    def join_v2(self, path: str) -> None:
        self.write("proc/self/cgroup", f"0::{path}\n")

    def join_v1(self, path: str) -> None:
        self.write("proc/self/cgroup", f"9:cpu,cpuacct:/\n4:memory:{path}\n0::/elsewhere\n")

    def limit_v2(self, group: str, limit: str | int, used: int, **stat: int) -> None:
        folder = f"sys/fs/cgroup{group.rstrip('/')}"
        self.write(f"{folder}/memory.max", limit)
        self.write(f"{folder}/memory.current", used)
        self.write(f"{folder}/memory.stat", "".join(f"{k} {v}\n" for k, v in stat.items()))

    def limit_v1(self, group: str, limit: int, used: int, **stat: int) -> None:
        folder = f"sys/fs/cgroup/memory{group.rstrip('/')}"
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.usage_in_bytes", used)
        self.write(f"{folder}/memory.stat", "".join(f"{k} {v}\n" for k, v in stat.items()))


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_without_cgroups_the_machine_decides(machine: FakeMachine):
    assert process.available_bytes(machine.root) == 6 * GIB
    assert process.total_bytes(machine.root) == 8 * GIB


def test_a_limit_leaves_what_is_not_used(machine: FakeMachine):
    machine.join_v2("/app")
    machine.limit_v2("/app", 2 * GIB, used=GIB)
    assert process.available_bytes(machine.root) == GIB
    assert process.total_bytes(machine.root) == 2 * GIB


def test_a_groups_name_may_have_colons(machine: FakeMachine):
    """Those of containerd have."""
    machine.join_v2("/pods.slice:cri:7f")
    machine.limit_v2("/pods.slice:cri:7f", 2 * GIB, used=GIB)
    assert process.available_bytes(machine.root) == GIB


def test_page_cache_counts_as_free_unless_it_is_mapped_or_dirty(machine: FakeMachine):
    machine.join_v2("/app")
    machine.limit_v2(
        "/app",
        2 * GIB,
        used=2 * GIB,
        active_file=300 * MIB,
        inactive_file=500 * MIB,
        file_mapped=60 * MIB,
        file_dirty=30 * MIB,
        file_writeback=10 * MIB,
    )
    assert process.available_bytes(machine.root) == 700 * MIB


def test_the_tightest_group_on_the_way_up_decides(machine: FakeMachine):
    machine.join_v2("/slice/app")
    machine.limit_v2("/slice/app", "max", used=GIB)
    machine.limit_v2("/slice", 3 * GIB, used=2 * GIB)
    assert process.available_bytes(machine.root) == GIB
    assert process.total_bytes(machine.root) == 3 * GIB


def test_a_throttling_limit_counts_like_a_hard_one(machine: FakeMachine):
    machine.join_v2("/app")
    machine.limit_v2("/app", 4 * GIB, used=0)
    machine.write("sys/fs/cgroup/app/memory.high", GIB)
    assert process.total_bytes(machine.root) == GIB


def test_in_a_container_the_mount_is_the_group(machine: FakeMachine):
    """Without a namespace of its own, the path names a group that lies outside the mount."""
    machine.join_v2("/docker/abc")
    machine.limit_v2("/", GIB, used=0)
    assert process.available_bytes(machine.root) == GIB


def test_version_1_counts_the_groups_below(machine: FakeMachine):
    machine.join_v1("/app")
    machine.limit_v1(
        "/app",
        2 * GIB,
        used=GIB,
        inactive_file=1,
        total_active_file=100 * MIB,
        total_inactive_file=200 * MIB,
        total_mapped_file=20 * MIB,
    )
    assert process.available_bytes(machine.root) == GIB + 280 * MIB


def test_a_group_over_its_limit_leaves_nothing(machine: FakeMachine):
    machine.join_v2("/app")
    machine.limit_v2("/app", GIB, used=2 * GIB)
    assert process.available_bytes(machine.root) == 0


def test_a_cpu_quota_limits_the_cores(machine: FakeMachine):
    machine.join_v2("/app")
    machine.write("sys/fs/cgroup/app/cpu.max", "150000 100000\n")
    machine.write("sys/fs/cgroup/cpu.max", "max 100000\n")
    assert cpu_quota(machine.root) == 1.5
    assert process.usable_cores(machine.root) == 1


@pytest.mark.parametrize(("n_logical", "n_allowed", "n_cores"), [(8, 6, 3), (2, 2, 2), (4, 8, 4)])
def test_second_threads_of_cores_are_no_cores(
    n_logical: int,
    n_allowed: int,
    n_cores: int,
    machine: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
):
    """Eight processors, two on each of four cores; musl counts those allowed, and
    PYTHON_CPU_COUNT limits them."""
    for cpu in range(8):
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"
        machine.write(name, f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "cpu_count", lambda: n_logical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(n_allowed))
    assert process.usable_cores(machine.root) == n_cores


def test_what_gvisor_and_wsl_1_do_not_tell_is_known(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
):
    machine.write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 4194304 kB\n")
    assert process.available_bytes(machine.root) == 4 * GIB
    monkeypatch.setattr(process.cgroups, "table", lambda _: {"VmRSS": 1})
    assert process.peak_rss_bytes() > MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")
def test_the_auto_budget_is_what_we_have_and_what_is_free_less_the_margin(machine: FakeMachine):
    machine.write("proc/self/status", "VmRSS: 51200 kB\n")
    machine.join_v2("/app")
    machine.limit_v2("/app", 4 * GIB, used=GIB)
    assert process.auto_budget(machine.root) == 50 * MIB + 3 * GIB - 384 * MIB


def test_the_margin_is_a_share_of_a_large_machine():
    assert process.margin_bytes(100 * GIB) == 5 * GIB


def test_memory_of_this_process_is_measured():
    block = bytearray(64 * MIB)
    block[:: 4096 // 2] = b"x" * len(block[:: 4096 // 2])
    with_block = process.process_rss_bytes()
    del block
    uncounted = (os.cpu_count() or 1) * 32 * 4096  # pages that Linux has not yet added up
    assert process.peak_rss_bytes() >= with_block - MIB - uncounted
    assert with_block > 64 * MIB


def test_a_plan_counts_the_process_in_whole_steps():
    step = process.STEP_BYTES
    assert [process.round_up_to_step(n) for n in (1, step, step + 1)] == [step, step, 2 * step]


def test_the_margin_of_a_small_container_is_a_quarter():
    assert process.margin_bytes(320 * MIB) == 80 * MIB
    assert process.margin_bytes(2 * GIB) == 384 * MIB


def test_a_plan_of_more_than_the_group_s_limit_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "total_bytes", lambda: 170 * MIB)
    assert process.note_on_plan(170 * MIB) is None
    note = Sentence(process.note_on_plan(400 * MIB) or "")
    assert "has 170 MiB of memory" in note and "400 MiB planned: lower `memory_budget`" in note
    monkeypatch.undo()
    monkeypatch.setattr(process, "note_on_plan", lambda _: note)
    with pytest.raises(BudgetError):
        edgespec.load(embedded_pair().target)
