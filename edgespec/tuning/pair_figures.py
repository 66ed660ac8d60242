"""Figures of a run of a pair on this device, saved so that `plan` can predict tokens a second.

The round planner says what the round that was measured would take under another plan or on another
disk. Knows the file; measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.regular import read_regular
from edgespec.jobs.other_work import TOO_MUCH
from edgespec.memory.budget import MemoryPlan
from edgespec.models.model_files import largest_of
from edgespec.paging import disk_speed
from edgespec.session import prospect
from edgespec.settings.config import LoadSettings
from edgespec.settings.options import Role
from edgespec.tuning import presets
from edgespec.tuning.trial import TrialFigures

_MAX_FILE_BYTES = 1 << 20
_MAX_SAVED = 8
NEAR = 2.0
"""Passes that read up to this many times as much, or as little, are predicted from a run."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second under a plan, and what decides them."""

    tokens_per_s: float
    """Infinite where neither reads nor computing are known to take time."""
    tokens_per_pass: float
    read_s: float
    compute_s: float

    @property
    def limit(self) -> str:
        """One sentence about what takes most of a round."""
        if self.read_s > self.compute_s:
            return "storage limits the speed: every pass reads the weights that are not pinned"
        return "computing limits the speed, not storage"


@dataclass(frozen=True, slots=True)
class PairFigures:
    """One run of a pair with the default settings."""

    tokens_per_pass: float
    compute_s: float
    rest_s: float
    """Seconds of a round beside its pass."""
    bytes_per_pass: int
    expert_bytes: int
    """Room for a mixture's experts; with less of it passes read more."""

    @classmethod
    def of(cls, run: TrialFigures, plan: MemoryPlan, disk_bytes_per_s: float | None) -> PairFigures:
        """The figures of `run`, which was planned as `plan` on such a disk."""
        rounds = prospect.planner_of(plan, disk_bytes_per_s, run.compute_s)
        rest_s = max(0.0, run.round_s - rounds.prospect(np.ones(1)).seconds)
        return cls(
            run.tokens_per_pass, run.compute_s, rest_s, plan.bytes_per_pass, plan.expert_bytes
        )

    def predict(
        self,
        plan: MemoryPlan,
        disk_bytes_per_s: float | None,
        more_tokens: float = 0.0,
        compute_factor: float = 1.0,
    ) -> Prediction:
        """Prediction under `plan`, with so many more tokens a pass and so much faster computing."""
        read_s = plan.bytes_per_pass / disk_bytes_per_s if disk_bytes_per_s else 0.0
        compute_s, rest_s = self.compute_s / compute_factor, self.rest_s / compute_factor
        tokens = self.tokens_per_pass + more_tokens
        rounds = prospect.planner_of(plan, disk_bytes_per_s, compute_s, rest_s)
        seconds = rounds.prospect(np.array([tokens])).seconds
        return Prediction(tokens / seconds if seconds else math.inf, tokens, read_s, compute_s)

    def applies_to(self, plan: MemoryPlan) -> bool:
        """True if passes under `plan` are like those that were measured."""
        mine, other = max(self.bytes_per_pass, 1), max(plan.bytes_per_pass, 1)
        rooms = max(self.expert_bytes, 1), max(plan.expert_bytes, 1)
        return 1 / NEAR <= other / mine <= NEAR and max(rooms) <= NEAR * min(rooms)


def save(load: LoadSettings, plan: MemoryPlan, figures: PairFigures) -> None:
    """Write the figures beside those of other budgets. A file that cannot be written is left."""
    path = _place(load, plan.paged)
    others = [old for old in _read(path) if not old.applies_to(plan)]
    with suppress(EdgespecError):
        text = _FILE.dump_json((figures, *others)[:_MAX_SAVED]).decode()
        presets.save(text, path)


def save_run(load: LoadSettings, plan: MemoryPlan, run: TrialFigures) -> PairFigures:
    """Save the figures of a run with the default settings, unless other work disturbed it."""
    figures = PairFigures.of(run, plan, disk_of(load, run))
    if run.others <= TOO_MUCH:
        save(load, plan, figures)
    return figures


def disk_of(load: LoadSettings, run: TrialFigures) -> float | None:
    """Bytes a second of passes that waited, else of plain reads; None where nothing is paged."""
    if not run.bytes_per_pass:
        return None
    return run.disk_bytes_per_s or disk_speed.bytes_per_second(largest_of(load.model))


def predicted(
    load: LoadSettings, plan: MemoryPlan, disk_bytes_per_s: float | None
) -> Prediction | None:
    """Prediction from a run with the same models, threads and options on this device, whose passes
    read about as much. None where there was no such run."""
    if plan.bytes_per_pass and not disk_bytes_per_s:
        return None
    kept = [figures for figures in _read(_place(load, plan.paged)) if figures.applies_to(plan)]
    return kept[0].predict(plan, disk_bytes_per_s) if kept else None


def _place(load: LoadSettings, paged: bool) -> Path:
    """Resident weights and those on a GPU are computed by other kernels than paged ones."""
    roles: tuple[Role, ...] = ("target", "draft") if load.draft else ("target",)
    unusual = sorted(
        f"{name}={getattr(options, name)}"
        for options in load.options.values()
        for role in roles
        for name in options.changed(role)
    )
    key = json.dumps(
        [
            presets.device(load.model),
            presets.files(load.model, load.draft),
            [load.threads, load.threads_draft, paged],
            unusual,
        ]
    )
    return cache_folder.tuned() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.figures.json"


def _read(path: Path) -> tuple[PairFigures, ...]:
    """Nothing where the file cannot be read."""
    try:
        return _FILE.validate_json(read_regular(path, _MAX_FILE_BYTES))
    except (OSError, EdgespecError, ValidationError):
        return ()


_FILE = TypeAdapter(tuple[PairFigures, ...])
