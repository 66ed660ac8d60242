"""Memory and cores that the machine and its cgroups leave to this process, and the auto budget.

It measures and knows nothing of models or plans. All files are read below `root`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from edgespec.errors import UsageError
from edgespec.memory import cgroups
from edgespec.settings.units import parse_size

MIB = 1 << 20
LEAST_MARGIN_BYTES = 256 * MIB
MARGIN_SHARE = 0.05
"""Share of the machine's memory that `auto` leaves to everybody else, LEAST_MARGIN_BYTES at least.
"""

STEP_BYTES = 4 * MIB
"""A plan counts the process in such steps: what it takes before loading differs by hundredths of a
MiB from run to run, and would be planned otherwise each time."""
UNLIKE_BYTES = 4 * MIB
"""Bytes that a command may take more before loading than the one that reported its smallest budget.
"""
LIBRARY_SHARE = 0.5
"""Share of the mapped bytes of libraries that is resident at the end of a run: 0.43 with llama.cpp,
0.51 with onnxruntime. The share before loading varies with the page cache."""
LIBRARY_GROWTH = 0.125
"""Share of the library bytes not resident before loading that becomes resident by the end of a run,
at most: 0.08 with onnxruntime, 0.05 with llama.cpp."""
LARGE_LIBRARY_BYTES = 48 * MIB
"""Mapped size from which on a library counts by what is resident: it holds kernels for many GPUs,
like cuBLAS, or shaders, and a run touches few of them. onnxruntime's has 29."""

_ROOT = Path("/")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ (?P<access>\S+) \S+ \S+ \d+ *(?P<path>.*)")


def process_rss_bytes(root: Path = _ROOT) -> int:
    """Resident memory of this process now."""
    if sys.platform == "linux":
        return cgroups.table(root / "proc/self/status")["VmRSS"]
    return int(psutil.Process().memory_info().rss)


def taken_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process takes by now, nearly the same in every run of a command: private
    memory, and of the libraries' files the most that runs touch."""
    if sys.platform != "linux":
        return process_rss_bytes(root)
    status = cgroups.table(root / "proc/self/status")
    mapped, resident = _library_bytes(root)
    growing = resident + int(LIBRARY_GROWTH * (mapped - resident))
    return status["VmRSS"] - resident + max(int(LIBRARY_SHARE * mapped), growing)


def in_steps(nbytes: int) -> int:
    """The next multiple of STEP_BYTES, as a plan counts the process."""
    return -(-nbytes // STEP_BYTES) * STEP_BYTES


def _library_bytes(root: Path) -> tuple[int, int]:
    """Mapped and resident bytes of the files whose code is mapped, without large ones."""
    sizes: dict[str, list[int]] = {}
    executable = set()
    path = ""
    for line in (root / "proc/self/smaps").read_text().splitlines():
        if found := _MAPPING.match(line):
            path = found["path"] if found["path"].startswith("/") else ""
            if "x" in found["access"]:
                executable.add(path)
            continue
        name, _, rest = line.partition(":")
        if path and name in ("Size", "Rss", "Anonymous"):
            mapped, resident = sizes.setdefault(path, [0, 0])
            n = int(rest.split()[0]) * 1024
            if name == "Size":
                sizes[path][0] = mapped + n
            else:
                sizes[path][1] = resident + (n if name == "Rss" else -n)
    code = [sizes[path] for path in executable if path in sizes]
    code = [size for size in code if size[0] < LARGE_LIBRARY_BYTES]
    return sum(mapped for mapped, _ in code), sum(resident for _, resident in code)


_counted_in: dict[int, int] = {}
"""Peaks of other processes that hold a part of a model, by their id, as far as they were seen."""


def count_in(pid: int) -> None:
    """Count the peak of another process, which holds a part of a model, as this one's."""
    _counted_in[pid] = 0


def count_out(pid: int) -> None:
    """End what `count_in` began: the process has ended."""
    _counted_in.pop(pid, None)


def peak_rss_bytes(root: Path = _ROOT) -> int:
    """The most resident memory that this process has had since it started, with the peaks of the
    processes that count as it."""
    for pid in list(_counted_in):
        with suppress(OSError, psutil.Error, KeyError):
            _counted_in[pid] = _peak_of(pid, root)
    return _own_peak_bytes(root) + sum(_counted_in.values())


def _peak_of(pid: int, root: Path) -> int:
    if sys.platform == "linux":
        return cgroups.table(root / f"proc/{pid}/status")["VmHWM"]
    return int(psutil.Process(pid).memory_info().rss)


def _own_peak_bytes(root: Path) -> int:
    if sys.platform == "linux":
        return cgroups.table(root / "proc/self/status")["VmHWM"]
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # Windows has none

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes that this process can still take without swapping or being killed.

    The least of what the machine has available and what each cgroup above the process has left;
    page cache that the kernel can drop counts as free in both.
    """
    if sys.platform != "linux":
        return int(psutil.virtual_memory().available)
    machine = cgroups.table(root / "proc/meminfo")["MemAvailable"]
    groups = cgroups.memory_groups(root)
    return max(0, min([machine, *(group.left_bytes() for group in groups)]))


def total_bytes(root: Path = _ROOT) -> int:
    """The memory of the machine, or of the tightest cgroup that holds this process."""
    if sys.platform != "linux":
        return int(psutil.virtual_memory().total)
    machine = cgroups.table(root / "proc/meminfo")["MemTotal"]
    groups = cgroups.memory_groups(root)
    return min([machine, *(group.limit_bytes() for group in groups)])


def margin_bytes(total: int) -> int:
    """Bytes that the auto budget leaves alone on a machine of `total` bytes."""
    return max(LEAST_MARGIN_BYTES, int(MARGIN_SHARE * total))


def auto_budget(rss: int, available: int, total: int) -> int:
    """The auto budget: what the process has already and what is free, less the margin, in bytes."""
    return max(0, rss + available - margin_bytes(total))


def resolve_budget(memory_budget: int | str) -> int:
    """Bytes of `LoadSettings.memory_budget` on this machine, now."""
    if memory_budget == "auto":
        return auto_budget(process_rss_bytes(), available_bytes(), total_bytes())
    return parse_size(memory_budget, total_bytes())


def resolve_gpu_budget(gpu_memory_budget: int | str | None, free: int, total: int) -> int:
    """Bytes of `LoadSettings.gpu_memory_budget` on a GPU. Raises UsageError if it has fewer."""
    if gpu_memory_budget in (None, "auto"):
        return max(0, free - margin_bytes(total))
    budget = parse_size(gpu_memory_budget, total)
    if budget > total:
        raise UsageError(
            f"--gpu-memory-budget asks for {budget / MIB:,.0f} MiB, and the GPU has "
            f"{total / MIB:,.0f}: ask for less, or leave it out"
        )
    return budget


def processor(root: Path = _ROOT) -> tuple[str, frozenset[str]]:
    """Name of the processor, and its instruction sets as Linux spells them; none elsewhere."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    pairs = (line.partition(":") for line in reversed(lines))  # the first processor's facts win
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    flags = facts.get("flags", facts.get("Features", "")).split()
    return facts.get("model name") or platform.machine(), frozenset(flags)


def usable_cores(root: Path = _ROOT) -> int:
    """Physical cores that this process may run on; a second thread per core computes nothing more.

    CPU affinity and the CPU quotas of cgroups (`docker run --cpus`) are taken into account.
    """
    logical = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    physical = psutil.cpu_count(logical=False) or logical
    return max(1, min(allowed * physical // logical, int(cgroups.cpu_quota(root))))
