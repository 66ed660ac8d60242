"""Memory and cores available to this process, and the auto budget.

Measures the machine and its cgroups; knows nothing of models or plans. Files are read below `root`.
psutil is imported where Linux has no file to read: it takes 1.4 MiB of a budget.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.errors import UsageError, setting
from edgespec.memory import cgroups
from edgespec.settings.units import auto_bounds, format_size, parse_size

MIB = 1 << 20
MIN_MARGIN_BYTES, MAX_MARGIN_SHARE = 384 * MIB, 0.25
MARGIN_SHARE = 0.05
"""Share of the memory that `auto` leaves free, at least MIN_MARGIN_BYTES, or MAX_MARGIN_SHARE where
that is less, as in a small container."""

CALM_S = 10.0
"""Seconds before a budget grows that has shrunk."""
LEAST_CHANGE = 0.02
"""Smaller changes than this share of a budget are not made."""
STEP_BYTES = MIB
"""Rounding step of the process's memory in a plan: its use before loading differs by hundredths of
a MiB from run to run, and plans should not."""

_ROOT = Path("/")


def process_rss_bytes(root: Path = _ROOT) -> int:
    """Resident memory of this process now."""
    if sys.platform == "linux":
        return cgroups.table(root / "proc/self/status")["VmRSS"]
    import psutil

    return int(psutil.Process().memory_info().rss)


def footprint_bytes() -> int:
    """Memory of this process now, for its row of a plan."""
    return round_up_to_step(process_rss_bytes())


def round_up_to_step(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of STEP_BYTES."""
    return -(-nbytes // STEP_BYTES) * STEP_BYTES


def peak_rss_bytes() -> int:
    """Peak resident memory since this process started."""
    if peak := cgroups.table(_ROOT / "proc/self/status").get("VmHWM"):  # gVisor has none
        return peak
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource  # Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process can still allocate without swapping or being killed.

    The minimum of the machine's available memory and what each of the process's cgroups has left.
    """
    if sys.platform != "linux":
        import psutil

        return int(psutil.virtual_memory().available)
    machine = cgroups.table(root / "proc/meminfo")
    free = machine.get("MemAvailable") or machine["MemFree"]  # all that WSL 1 has
    return max(0, min(free, cgroups.memory_left(root)))


def total_bytes(root: Path = _ROOT) -> int:
    """Memory of the machine, or the tightest limit of the process's cgroups if that is less."""
    if sys.platform != "linux":
        import psutil

        return int(psutil.virtual_memory().total)
    machine = cgroups.table(root / "proc/meminfo")["MemTotal"]
    return min(machine, cgroups.memory_limit(root))


def margin_bytes(total: int) -> int:
    """Bytes that the auto budget leaves free on a machine with `total` bytes."""
    least = min(MIN_MARGIN_BYTES, int(MAX_MARGIN_SHARE * total))
    return max(least, int(MARGIN_SHARE * total))


def auto_budget(root: Path = _ROOT) -> int:
    """The auto budget in bytes: resident plus available memory, minus the margin."""
    free = process_rss_bytes(root) + available_bytes(root)
    return max(0, free - margin_bytes(total_bytes(root)))


class FreeMemory:
    """The budget between a floor and a ceiling that the free memory affords: it shrinks at once and
    grows after calm seconds."""

    def __init__(
        self, floor: int, ceiling: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.floor, self._ceiling, self._clock = floor, ceiling, clock
        self._may_grow_s = clock() + CALM_S

    def next_budget(self, free_bytes: int, budget_bytes: int) -> int | None:
        """The budget to change to; None to keep the present one.

        `free_bytes` is what this process has and could have more, less a margin.
        """
        now_s, wanted = self._clock(), max(self.floor, min(free_bytes, self._ceiling))
        if abs(wanted - budget_bytes) < LEAST_CHANGE * budget_bytes:
            return None
        if wanted < budget_bytes:
            self._may_grow_s = now_s + CALM_S
        return wanted if wanted < budget_bytes or now_s >= self._may_grow_s else None


def note_on_plan(planned_bytes: int) -> str | None:
    """A note about a plan for more memory than there is; None for others."""
    total = total_bytes()
    if planned_bytes <= total:
        return None
    return (
        f"this machine has {format_size(total)} of memory for this process, less than the "
        f"{format_size(planned_bytes)} planned: lower {setting.memory_budget}"
    )


def auto_note(budget_bytes: int, memory_budget: int | str) -> list[str]:
    """Addition to an error about a budget that `auto` chose; empty for one that was given."""
    if auto_bounds(memory_budget) is None:
        return []
    margin = margin_bytes(total_bytes()) / MIB
    return [
        f"auto chose the {budget_bytes / MIB:.0f} MiB: what this process has and what is free now, "
        f"less a margin of {margin:.0f} MiB"
    ]


def resolve_budget(memory_budget: int | str) -> int:
    """The value of `LoadSettings.memory_budget` in bytes, on this machine and now."""
    if auto_bounds(memory_budget) is not None:
        floor, ceiling = budget_bounds(memory_budget)
        return min(max(auto_budget(), floor), ceiling)
    return parse_size(memory_budget, total_bytes())


def budget_bounds(memory_budget: int | str) -> tuple[int, int]:
    """Bytes between which a budget stays that follows the free memory."""
    floor, ceiling = auto_bounds(memory_budget) or ("", "")
    total = total_bytes()
    least = parse_size(floor, total) if floor else 0
    most = parse_size(ceiling, total) if ceiling else cgroups.UNLIMITED
    if least > most:
        raise UsageError("the smaller size comes first, as in auto:1GiB-4GiB")
    return least, most


def resolve_gpu_budget(gpu_memory_budget: int | str | None, free: int, total: int) -> int:
    """The value of `LoadSettings.gpu_memory_budget` in bytes.

    Raises UsageError if it exceeds `total`, the bytes of the GPU.
    """
    if gpu_memory_budget in (None, "auto"):
        return max(0, free - margin_bytes(total))
    budget = parse_size(gpu_memory_budget, total)
    if budget > total:
        raise UsageError(
            f"{setting.gpu_memory_budget} asks for {budget / MIB:,.0f} MiB, and the GPU has "
            f"{total / MIB:,.0f}: ask for less, or leave it out"
        )
    return budget


def processor() -> tuple[str, frozenset[str]]:
    """Name of the processor, and on Linux the names of its instruction sets."""
    try:
        lines = (_ROOT / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    pairs = (line.partition(":") for line in reversed(lines))  # the first processor's facts win
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    flags = facts.get("flags", facts.get("Features", "")).split()
    return facts.get("model name") or platform.machine(), frozenset(flags)


def usable_cores(root: Path = _ROOT) -> int:
    """Physical cores that this process may use; a second thread per core adds no speed.

    Considers CPU affinity and the CPU quotas of cgroups (`docker run --cpus`).
    """
    logical = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    physical = _physical_cores(root) or logical
    # logical ones are fewer where musl counts those allowed, or PYTHON_CPU_COUNT is set
    cores = allowed * physical // max(logical, allowed, physical)
    return max(1, min(cores, logical, int(cgroups.cpu_quota(root))))


def _physical_cores(root: Path) -> int | None:
    """Number of physical cores; None if unknown."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_cpus_list")
    if cores := {file.read_text(encoding="utf-8") for file in files}:
        return len(cores)
    import psutil

    return psutil.cpu_count(logical=False)
