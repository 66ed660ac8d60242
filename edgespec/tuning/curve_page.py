"""The curve of tokens a second over memory: as a table for people and as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edgespec.bench import charts, markup
from edgespec.tuning.curve import GIB, Curve, Point, typical_error
from edgespec.tuning.report import choice_line
from edgespec.units import format_size

HEAD = (
    "budget", "a pass reads", "tokens/s predicted", "measured", "alone", "per GiB more", "peak",
    "settings",
)  # fmt: skip


def table(curve: Curve) -> list[str]:
    """The same figures as the page."""
    rows = [HEAD, *(_cells(curve, point) for point in curve.points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return [*lines, "", *facts(curve)]


def facts(curve: Curve) -> list[str]:
    """What a reader wants to know of it, in sentences."""
    said = [
        f"{format_size(point.budget_bytes)} is too small: {format_size(point.smallest_bytes)} is "
        "the least."
        for point in curve.points
        if not point.works
    ]
    if curve.resident_bytes is not None:
        said.append(
            f"From {format_size(curve.resident_bytes)} on all of the target stays in memory."
        )
    if curve.measured.wanted.usual.draft is not None:
        until = curve.draft_pays_until
        said.append(
            "The draft pays at all of these budgets."
            if until is None
            else f"From {format_size(until)} on the target alone is predicted to be as fast: the "
            "draft's memory serves the target better (--no-draft)."
        )
    for better, worse in curve.falls:
        said.append(
            f"{format_size(worse.budget_bytes)} is slower than {format_size(better.budget_bytes)} "
            "by more than runs of the same settings differ: more memory brings nothing there."
        )
    error = typical_error(curve)
    if error is not None:
        fitted = ", ".join(format_size(p.budget_bytes) for p in curve.points if p.is_fitted)
        said.append(
            f"Predictions rest on runs at {fitted}, and were {error:.0%} from what was measured at "
            "others, the median."
        )
    unknown = [point for point in curve.points if point.works and point.predicted is None]
    if unknown:
        said.append("Resident weights compute otherwise; there was no time to measure how.")
    return said


def html(curve: Curve, command: str) -> str:
    """One file that needs nothing else."""
    wanted = curve.measured.wanted
    drafts = f", draft {wanted.usual.draft.name}" if wanted.usual.draft else ""
    best = max(curve.points, key=lambda point: point.measured or point.predicted or 0.0)
    tiles = [
        (f"{best.measured or best.predicted or 0:.1f} tokens/s", format_size(best.budget_bytes))
    ]
    if curve.resident_bytes is not None:
        tiles.append((format_size(curve.resident_bytes), "from here on all of the target fits"))
    notes = "".join(f"<li>{escape(line)}</li>" for line in facts(curve))
    return markup.document(
        f"edgespec tune: {wanted.load.model.name}",
        [
            markup.header("Tokens a second over memory", wanted.load.model.name + drafts, tiles),
            _chart(curve),
            markup.section(
                "Figures",
                markup.table(HEAD, [_cells(curve, point) for point in curve.points])
                + f'<ul class="notes">{notes}</ul>',
            ),
            markup.section("Command", f"<p>{escape(command)}</p>"),
        ],
    )


def _chart(curve: Curve) -> str:
    works = [point for point in curve.points if point.works]
    lines = [
        charts.Line("predicted", _over(works, [p.predicted for p in works]), "ours"),
        charts.Line("alone", _over(works, [p.predicted_alone for p in works]), "theirs"),
        charts.Line("measured", _over(works, [p.measured for p in works]), "draft", joined=False),
    ]
    resident = curve.resident_bytes
    largest = max((point.budget_bytes for point in works), default=0)
    mark = (resident / GIB, "all fits") if resident and resident <= 1.5 * largest else None
    legend = markup.legend(
        ("ours", "predicted"), ("theirs", "predicted, the target alone"), ("draft", "measured")
    )
    return markup.section(
        "What memory brings",
        legend + charts.curves(lines, "GiB", "tokens/s", mark),
        "The budget is the peak memory of the whole process.",
    )


def _over(points: Sequence[Point], rates: Sequence[float | None]) -> list[tuple[float, float]]:
    return [
        (point.budget_bytes / GIB, rate)
        for point, rate in zip(points, rates, strict=True)
        if rate is not None
    ]


def _cells(curve: Curve, point: Point) -> tuple[str, ...]:
    if not point.works:
        return (format_size(point.budget_bytes), "too small", *["-"] * 6)
    return (
        format_size(point.budget_bytes),
        "nothing" if point.resident else format_size(point.bytes_per_pass),
        _figure(point.predicted),
        _figure(point.measured),
        _figure(point.predicted_alone),
        _figure(curve.gain_per_gib(point)),
        format_size(point.peak_bytes) if point.peak_bytes else "-",
        choice_line(point.choice, curve.measured.wanted.usual) if point.choice else "-",
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
