"""The report of a bench as values and as JSON: machine, models, limits and results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
        return self.modes[0].name if self.modes else None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values, with every run."""
        return asdict(self) | {"reference": self.reference}

    def shared(self) -> dict[str, Any]:
        """Machine, disk, model, limits and speeds, for others to compare; no paths and no texts."""
        return {
            "edgespec": self.versions["edgespec"],
            **asdict(self.machine),
            "disk_bytes_per_s": round(self.raw_bytes_per_s.median),
            "model": self.target.file,
            "model_bytes": self.target.size_bytes,
            "drafts": [draft.file for draft in self.drafts],
            "limits": asdict(self.limits),
            "tokens": self.n_tokens,
            "modes": {
                mode.name: {
                    "tokens_per_s": round(mode.tokens_per_s.median, 3),
                    "ratio": round(mode.ratio.median, 2) if mode.ratio else None,
                    "reference": mode.reference,
                    "tokens_per_pass": round(mode.tokens_per_pass, 2),
                    "peak_bytes": mode.peak_bytes,
                }
                for mode in self.modes
            },
        }


def this_machine(n_threads: int) -> MeasuredMachine:
    """A description of this machine."""
    return MeasuredMachine(
        cpu=process.processor()[0],
        n_threads=n_threads,
        n_cpus=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
    )
