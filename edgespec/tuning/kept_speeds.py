"""What was measured of a pair on this device, kept so that `plan` can predict tokens a second.

Knows the file and what it says of other budgets and disks; measures nothing itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edgespec import theory
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.files.regular import read_regular
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.options import Role
from edgespec.tuning import presets
from edgespec.tuning.cost_model import Places, Prediction, Speeds, predict
from edgespec.tuning.measurements import TreeYield
from edgespec.tuning.measuring import Measured, Wanted

_MOST_BYTES = 1 << 20
_MOST_FITS = 8
_LEAST_READ_S = 1e-3
BOUND_REACHED = 0.9
"""Of what reads are bound to, where the bound decides: 0.95 of 300 MB/s were read."""
_ALIKE, _NEAR = math.log(1.5), math.log(2)
_NEAR_ROOM = 1.25
STORAGE_DECIDES = 2.0
"""Times as long as computing a single node: so long must reading take."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a run showed where plain reads of a pass's bytes take `read_s`: where passes wait, it
    comes near the best round; where they compute, rules that learn find that late."""

    read_s: float
    disk_share: float = 1.0
    """Of what plain reads reach, what passes do."""
    gain: float = 1.0
    unhidden: float = 1.0
    reached: float = 1.0
    expert_bytes: int = 0
    """Room for a mixture's experts: with another one, other choices of experts are read anew."""

    def unlike(self, read_s: float) -> float:
        """How far from a pass that reads for so long."""
        return abs(math.log(max(self.read_s, _LEAST_READ_S) / max(read_s, _LEAST_READ_S)))

    def is_alike(self, other: Fit) -> bool:
        """What the later one replaces."""
        return self.unlike(other.read_s) <= _ALIKE and self.expert_bytes == other.expert_bytes

    def is_near(self, read_s: float, expert_bytes: int) -> bool:
        """Passes like those that were measured."""
        rooms = max(self.expert_bytes, 1), max(expert_bytes, 1)
        return self.unlike(read_s) <= _NEAR and max(rooms) <= _NEAR_ROOM * min(rooms)


@dataclass(frozen=True, slots=True)
class KeptSpeeds:
    """`Speeds` that hold for any budget and disk."""

    compute: dict[int, Places]
    """By the target's threads."""
    yields: dict[int, tuple[TreeYield, ...]]
    """By the draft's threads."""
    fits: tuple[Fit, ...]
    """The latest first."""
    lookups: tuple[TreeYield, ...] = ()


def keep(measured: Measured, confirmed: float = 1.0, bound_bytes_per_s: float = inf) -> None:
    """For the target with the measured draft, and alone. `confirmed` is what later runs of the
    usual settings had of the predicted tokens a second. Reads that were bound to
    `bound_bytes_per_s` are predicted from the same name for them. What cannot be written is not
    kept."""
    speeds, draft, plan = measured.speeds, measured.wanted.usual.draft, measured.plan
    raw_bytes_per_s = inf
    if measured.reads:
        # half a second of plain reads can fall short of what passes reached
        raw_bytes_per_s = max(measured.reads[0].bytes_per_s, speeds.disk_bytes_per_s)
    if isfinite(raw_bytes_per_s) and raw_bytes_per_s >= BOUND_REACHED * bound_bytes_per_s:
        raw_bytes_per_s = bound_bytes_per_s
    is_known = isfinite(raw_bytes_per_s) and isfinite(speeds.disk_bytes_per_s)
    share = speeds.disk_bytes_per_s / raw_bytes_per_s if is_known else 1.0
    fit = Fit(plan.bytes_per_pass / raw_bytes_per_s, share, expert_bytes=plan.expert_bytes)
    load, usual = measured.wanted.load, measured.wanted.usual
    alone = KeptSpeeds(compute=dict(speeds.compute), yields={}, fits=(fit,), lookups=speeds.lookups)
    _write(alone, _place(load, None, plan.paged))
    if draft is None:
        return
    path = _place(load, draft, plan.paged)
    before = _recalled(path)
    others = [old for old in before.fits if not old.is_alike(fit)] if before else []
    latest = replace(
        fit, gain=speeds.gain, unhidden=speeds.unhidden, reached=speeds.reached * confirmed
    )
    drafted = KeptSpeeds(
        compute=alone.compute,
        yields={threads: trees for (of, threads), trees in speeds.yields.items() if of == draft},
        fits=(latest, *others)[:_MOST_FITS],
    )
    _write(drafted, path)
    for (of, offload), trees in speeds.offloaded.items():
        if of == draft:
            threads = {usual.threads_draft or usual.threads, *speeds.compute}
            on_gpu = replace(drafted, yields=dict.fromkeys(threads, trees))
            _write(on_gpu, _place(offload.added_to(load), draft, plan.paged))


def predicted(
    load: LoadSettings, engine: EngineSettings, plan: MemoryPlan, disk_bytes_per_s: float | None
) -> Prediction | None:
    """Of texts like those that were measured, by the run whose passes read for about as long. None
    where nothing was measured that speaks of it: not this pair, not with so many threads, only
    other weights in memory than all or than some, of a mixture not with so much room for experts,
    or only passes that read for much longer or shorter, unless storage decides."""
    kept = _recalled(_place(load, load.draft, plan.paged))
    if kept is None or not kept.fits or (plan.bytes_per_pass and not disk_bytes_per_s):
        return None
    raw_bytes_per_s = disk_bytes_per_s or inf
    read_s = plan.bytes_per_pass / raw_bytes_per_s
    near = [fit for fit in kept.fits if fit.is_near(read_s, plan.expert_bytes)]
    fit = min(near or kept.fits, key=lambda fit: fit.unlike(read_s))
    is_near = fit.is_near(read_s, plan.expert_bytes)
    draft, drafts = load.draft, (load.draft,) if load.draft else ()
    speeds = Speeds(
        disk_bytes_per_s=(fit.disk_share if is_near else 1.0) * raw_bytes_per_s,
        compute=kept.compute,
        yields={(draft, threads): trees for threads, trees in kept.yields.items() if draft},
        lookups=kept.lookups,
        gain=fit.gain,
        unhidden=fit.unhidden,
        reached=fit.reached if is_near else 1.0,
    )
    usual = Wanted(load, engine, drafts, process.usable_cores()).usual
    try:
        found = predict(usual, plan, speeds)
    except KeyError:
        return None
    compute_s = theory.at(kept.compute[usual.threads], 1)
    storage_decides = not plan.expert_bytes and found.read_s > STORAGE_DECIDES * compute_s
    return found if is_near or storage_decides else None


def _place(load: LoadSettings, draft: Path | None, paged: bool) -> Path:
    """Resident weights compute with other kernels than paged ones, and so do a GPU's."""
    files = presets.files(load.model, draft)
    said = json.dumps([presets.device(load.model), files, paged, *_unusual(load, draft)])
    digest = hashlib.sha256(said.encode()).hexdigest()[:24]
    return cache_folder.tuned() / f"{digest}.speeds.json"


def _unusual(load: LoadSettings, draft: Path | None) -> list[list[str]]:
    """The runtimes' own options that are not at their defaults."""
    roles: tuple[Role, ...] = ("target", "draft") if draft else ("target",)
    found = {
        (name, str(getattr(options, name)))
        for options in load.options.values()
        for role in roles
        for name in options.given(role)
    }
    return [list(pair) for pair in sorted(found)]


def _write(kept: KeptSpeeds, path: Path) -> None:
    with suppress(EdgespecError):
        presets.save(_KEPT.dump_json(kept).decode(), path)


def _recalled(path: Path) -> KeptSpeeds | None:
    """What cannot be read is as good as none."""
    try:
        return _KEPT.validate_json(read_regular(path, _MOST_BYTES))
    except (OSError, EdgespecError, ValidationError):
        return None


_KEPT = TypeAdapter(KeptSpeeds)
