"""Tokens a second over memory: what each budget brings, predicted and, where it is short, measured.

Values; how they are found, and how they are shown, is elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from edgespec.tuning.cost_model import Choice
from edgespec.tuning.measuring import Measured
from edgespec.tuning.report import choice_line

GIB = 1 << 30
NOISE = 0.1
"""By which runs of the same settings differ: 2 to 10 % were seen."""


@dataclass(frozen=True, slots=True)
class Point:
    """One budget."""

    budget_bytes: int
    smallest_bytes: int = 0
    """Where the budget is too small: one that is not."""
    resident: bool = False
    bytes_per_pass: int = 0
    choice: Choice | None = None
    """The settings that `predicted` is of; None where nothing is predicted."""
    predicted: float | None = None
    """Tokens a second; None where nothing is known of how resident weights compute."""
    predicted_usual: float | None = None
    """With the settings that run without tuning."""
    predicted_drafted: float | None = None
    """The best with the draft."""
    predicted_alone: float | None = None
    """Without the draft, which leaves its memory to the target."""
    measured: float | None = None
    """Of the chosen settings."""
    is_fitted: bool = False
    """Whether predictions rest on that run."""
    peak_bytes: int = 0

    @property
    def works(self) -> bool:
        return not self.smallest_bytes


@dataclass(frozen=True, slots=True)
class Curve:
    """All of them, the smallest first."""

    measured: Measured
    points: tuple[Point, ...]
    resident_bytes: int | None
    """The budget from which on all of the target stays in memory; None if it never can."""

    @property
    def draft_pays_until(self) -> int | None:
        """The first budget that is as good without the draft; None where there is no such one."""
        ends = (
            point.budget_bytes
            for point in self.points
            if point.predicted_drafted and point.predicted_alone
            if point.predicted_alone >= point.predicted_drafted
        )
        return next(ends, None)

    @property
    def falls(self) -> tuple[tuple[Point, Point], ...]:
        """Budgets with which fewer tokens a second were measured, or else predicted, than with a
        smaller one, by more than runs of the same settings differ: the better one first."""
        found, best = [], None
        for point in self.points:
            rate = point.measured or point.predicted
            if not rate:
                continue
            if best is not None and rate < (1 - NOISE) * (best.measured or best.predicted or 0.0):
                found.append((best, point))
            if best is None or rate > (best.measured or best.predicted or 0.0):
                best = point
        return tuple(found)

    def gain_per_gib(self, point: Point) -> float | None:
        """Tokens a second that one more GiB brought on the way from the budget before."""
        before = [p for p in self.points if p.predicted and p.budget_bytes < point.budget_bytes]
        if not before or point.predicted is None or before[-1].predicted is None:
            return None
        added = (point.budget_bytes - before[-1].budget_bytes) / GIB
        return (point.predicted - before[-1].predicted) / added


def error_of(point: Point) -> float | None:
    """How far the prediction lay from what was measured, as a share of it."""
    if point.measured and point.predicted and not point.is_fitted:
        return point.predicted / point.measured - 1
    return None


def typical_error(curve: Curve) -> float | None:
    """The median, without its sign, of the budgets that were measured."""
    errors = [abs(error) for point in curve.points if (error := error_of(point)) is not None]
    return median(errors) if errors else None


def as_dict(curve: Curve) -> dict[str, Any]:
    """For programs."""
    return {
        "points": [_point_dict(curve, point) for point in curve.points],
        "resident_from_bytes": curve.resident_bytes,
        "draft_pays_until_bytes": curve.draft_pays_until,
        "typical_error": typical_error(curve),
    }


def _point_dict(curve: Curve, point: Point) -> dict[str, Any]:
    told = asdict(replace(point, choice=None))
    usual = curve.measured.wanted.usual
    told["settings"] = choice_line(point.choice, usual) if point.choice else None
    del told["choice"]
    return told | {"works": point.works, "gain_per_gib": curve.gain_per_gib(point)}
