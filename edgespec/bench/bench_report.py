"""The report of a bench as values and as JSON: machine, models, limits and results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from edgespec.bench.summary import FinishedRun, ModeSummary, Spread
from edgespec.memory import process


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """The machine that the runs were measured on."""

    cpu: str
    n_threads: int
    """Threads of each run."""
    n_cpus: int
    memory_bytes: int
    system: str
    disk: str
    """Kind of the file system that holds the target, and its device."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model by its file name; reports contain no paths."""

    file: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AppliedLimits:
    """Limits of each run's process."""

    method: str
    """`cgroup v1`, `cgroup v2` or `unlimited`."""
    memory_bytes: int | None
    read_bytes_per_s: int | None
    budget_bytes: int | None
    """edgespec's own budget, a little below the limit; None: what was free."""


@dataclass(frozen=True, slots=True)
class SkippedMode:
    """A mode without results, and the reason."""

    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything about one bench."""

    command: str
    began: str
    """Date and time, ISO 8601."""
    versions: Mapping[str, str]
    machine: MeasuredMachine
    target: ModelFile
    drafts: Sequence[ModelFile]
    """Draft models of the measured modes."""
    limits: AppliedLimits
    n_tokens: int
    n_baseline_tokens: int
    n_repetitions: int
    prompts: Sequence[str]
    raw_bytes_per_s: Spread
    descriptions: Mapping[str, str]
    """One-line descriptions by mode."""
    modes: Sequence[ModeSummary]
    """Results by mode; the first mode is the reference for ratios and agreement."""
    left_out: Sequence[SkippedMode]
    failures: Sequence[SkippedMode]
    """Failed runs."""
    notes: Sequence[str]
    rows: Sequence[FinishedRun]
    sampling: Mapping[str, Any] | None = None
    """Sampling of modes with a temperature; None if all were greedy."""

    @property
    def reference(self) -> str | None:
        return self.modes[0].variant if self.modes else None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values, with every run."""
        return asdict(self) | {"reference": self.reference}


def this_machine(path: Path, n_threads: int) -> MeasuredMachine:
    """A description of this machine and the disk of `path`."""
    return MeasuredMachine(
        cpu=process.processor()[0],
        n_threads=n_threads,
        n_cpus=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        disk=_disk_of(path),
    )


def _disk_of(path: Path) -> str:
    resolved = path.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if resolved.is_relative_to(m.mountpoint)]
    if not mounts:
        return "unknown"
    mount = max(mounts, key=lambda m: len(m.mountpoint))
    return f"{mount.fstype} on {mount.device}"
