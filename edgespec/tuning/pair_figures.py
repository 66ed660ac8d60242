"""Measured figures of a pair on this device, saved so that `plan` can predict tokens per second.

The round planner extrapolates the measured round to other plans and disks. Knows the file; measures
nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.regular import read_regular
from edgespec.jobs.other_work import DISTURBING_SHARE
from edgespec.memory.budget import MemoryPlan
from edgespec.models.model_files import largest_of
from edgespec.paging import disk_speed
from edgespec.session import strategy
from edgespec.settings.config import LoadSettings
from edgespec.settings.options import Role
from edgespec.tuning import presets
from edgespec.tuning.trial import TrialFigures

_MAX_FILE_BYTES = 1 << 20
_MAX_SAVED = 8
MAX_READ_RATIO = 2.0
"""A run predicts plans whose passes read at most this many times as much, or as little."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted tokens per second under a plan, and their limit."""

    tokens_per_s: float
    """Infinite if the times of reads and of compute are unknown."""
    tokens_per_pass: float
    read_s: float
    compute_s: float

    @property
    def limit(self) -> str:
        """A sentence that says whether storage or compute limits the speed."""
        if self.read_s > self.compute_s:
            return "storage limits the speed: every pass reads the weights that are not pinned"
        return "computing limits the speed, not storage"


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Figures of one run of a pair with the default settings."""

    tokens_per_pass: float
    compute_s: float
    rest_s: float
    """Seconds of a round outside its pass."""
    bytes_per_pass: int
    expert_bytes: int
    """Size of the expert cache; with a smaller one, passes read more."""

    @classmethod
    def of(cls, run: TrialFigures, plan: MemoryPlan, disk_bytes_per_s: float | None) -> PairFigures:
        """The figures of `run`, which ran under `plan` on a disk of this speed."""
        prices = strategy.prices_of(plan, disk_bytes_per_s, run.compute_s)
        rest_s = max(0.0, run.round_s - float(prices.pass_s(1)))
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
        """Predict the speed under `plan`, with more tokens per pass or faster compute."""
        read_s = plan.bytes_per_pass / disk_bytes_per_s if disk_bytes_per_s else 0.0
        compute_s, rest_s = self.compute_s / compute_factor, self.rest_s / compute_factor
        tokens = self.tokens_per_pass + more_tokens
        prices = strategy.prices_of(plan, disk_bytes_per_s, compute_s)
        seconds = float(prices.pass_s(1)) + rest_s
        return Prediction(tokens / seconds if seconds else math.inf, tokens, read_s, compute_s)

    def applies_to(self, plan: MemoryPlan) -> bool:
        """True if passes under `plan` are similar to the measured ones."""
        mine, other = max(self.bytes_per_pass, 1), max(plan.bytes_per_pass, 1)
        rooms = max(self.expert_bytes, 1), max(plan.expert_bytes, 1)
        return 1 / MAX_READ_RATIO <= other / mine <= MAX_READ_RATIO and max(
            rooms
        ) <= MAX_READ_RATIO * min(rooms)


def save(load: LoadSettings, plan: MemoryPlan, figures: PairFigures) -> None:
    """Save the figures beside those of other budgets, if the file can be written."""
    path = _figures_path(load, plan.paged)
    others = [old for old in _read(path) if not old.applies_to(plan)]
    with suppress(EdgespecError):
        text = _FILE.dump_json((figures, *others)[:_MAX_SAVED]).decode()
        presets.save(text, path)


def save_run(load: LoadSettings, plan: MemoryPlan, run: TrialFigures) -> PairFigures:
    """Save the figures of a run with the default settings, unless other processes disturbed it."""
    figures = PairFigures.of(run, plan, disk_of(load, run))
    if run.others <= DISTURBING_SHARE:
        save(load, plan, figures)
    return figures


def disk_of(load: LoadSettings, run: TrialFigures) -> float | None:
    """Bytes per second of stalled passes, otherwise of plain reads; None if nothing is paged."""
    if not run.bytes_per_pass:
        return None
    return run.disk_bytes_per_s or disk_speed.bytes_per_second(
        largest_of(load.model), limit=load.read_limit
    )


def predicted(
    load: LoadSettings, plan: MemoryPlan, disk_bytes_per_s: float | None
) -> Prediction | None:
    """Prediction from a similar run with the same models, threads and options on this device.

    None if there is none.
    """
    if plan.bytes_per_pass and not disk_bytes_per_s:
        return None
    kept = [
        figures for figures in _read(_figures_path(load, plan.paged)) if figures.applies_to(plan)
    ]
    return kept[0].predict(plan, disk_bytes_per_s) if kept else None


def _figures_path(load: LoadSettings, paged: bool) -> Path:
    """Path of the figures of these models on this device.

    Paged and resident weights have separate files, and so do options such as GPU layers, because
    they use different kernels.
    """
    roles: tuple[Role, ...] = ("target", "draft") if load.draft else ("target",)
    unusual = sorted(
        f"{name}={getattr(options, name)}"
        for options in load.options.values()
        for role in roles
        for name in options.changed(role)
    )
    key = json.dumps(
        [
            presets.device_identity(load.model),
            presets.model_identity(load.model, load.draft),
            [load.threads, load.threads_draft, paged],
            unusual,
        ]
    )
    return cache_folder.tuned() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.figures.json"


def _read(path: Path) -> tuple[PairFigures, ...]:
    """Figures in the file; empty if it cannot be read."""
    try:
        return _FILE.validate_json(read_regular(path, _MAX_FILE_BYTES))
    except (OSError, EdgespecError, ValidationError):
        return ()


_FILE = TypeAdapter(tuple[PairFigures, ...])
