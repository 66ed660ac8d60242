"""Bar charts of a bench: horizontal bars with whiskers, as self-contained SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from edgespec.bench.bench_report import BenchReport
from edgespec.bench.modes import ENGINE_MODES
from edgespec.bench.table import figure

WIDTH = 960
MIN_LABEL, MAX_LABEL = 130, 400
"""Width of the names at the left."""
CHARACTER = 8.0
"""Width of the widest letters of a name, in bold 13 pixels."""
VALUE = 150
"""Width of the figures at the right."""
BAR, STEP, AXIS = 18, 32, 26

STYLE = """\
:root{color-scheme:light dark;--ink:#1b1c1e;--soft:#5d6168;--grid:#e3e6e9;--theirs:#9aa1ab;
--ours:#2f6fd0;--best:#0b3f94}
@media (prefers-color-scheme:dark){:root{--ink:#eceef1;--soft:#a2a8b1;--grid:#2f343a;
--theirs:#737b87;--ours:#5b97ee;--best:#9cc3ff}}
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink);
dominant-baseline:middle}
.end{text-anchor:end}.middle{text-anchor:middle}.small{font-size:11.5px;fill:var(--soft)}
.name{font-weight:600}.value{font-variant-numeric:tabular-nums}
.grid{stroke:var(--grid)}.whisker{stroke:var(--soft);fill:none}
.theirs{fill:var(--theirs)}.ours{fill:var(--ours)}.best{fill:var(--best)}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `least` and `most` are the ends of its whisker, `kind` is theirs, ours or best."""

    label: str
    value: float
    least: float
    most: float
    text: str
    kind: str


def picture(report: BenchReport) -> str:
    """SVG of tokens per second by mode: medians, with whiskers from slowest to fastest run."""
    ours = {mode.strategy for mode in ENGINE_MODES}
    rows = []
    for mode in report.modes:
        rate, text = mode.tokens_per_s, figure(mode.tokens_per_s.median)
        if mode.ratio and mode.name != mode.reference:
            text += f", {mode.ratio.median:.2f} times {mode.reference}"
        is_ours = mode.strategy in ours
        kind = "best" if mode.strategy == "auto" else "ours" if is_ours else "theirs"
        rows.append(Bar(mode.name, rate.median, rate.least, rate.most, text, kind))
    return bars(rows, "tokens/s")


def bars(rows: Sequence[Bar], unit: str) -> str:
    """SVG of horizontal bars that begin at zero; colours follow the viewer's theme."""
    most = max((row.most for row in rows), default=0.0) or 1.0
    left = min(
        max(MIN_LABEL, 10 + CHARACTER * max((len(row.label) for row in rows), default=0)),
        MAX_LABEL,
    )
    height = STEP * len(rows)

    def x_of(value: float) -> float:
        return left + (WIDTH - VALUE - left) * value / most

    parts = []
    for tick in _ticks(most):
        x = x_of(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{height}"/>')
        parts.append(_text(x, height + 12, f"{tick:g}", "middle small"))
    parts.append(_text(WIDTH - VALUE + 16, height + 12, unit, "small"))
    for number, row in enumerate(rows):
        y = number * STEP + (STEP - BAR) / 2
        middle, end = y + BAR / 2, x_of(row.value)
        parts.append(_text(left - 10, middle, row.label, "end name"))
        parts.append(
            f'<rect class="{escape(row.kind)}" x="{left:.1f}" y="{y:.1f}" '
            f'width="{max(end - left, 0.5):.1f}" height="{BAR}" rx="1.5"/>'
        )
        if row.most > row.least:
            low, high = x_of(row.least), x_of(row.most)
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}'
                f'M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"/>'
            )
        parts.append(_text(max(end, x_of(row.most)) + 8, middle, row.text, "value"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {height + AXIS:g}" role="img" '
        'xmlns="http://www.w3.org/2000/svg">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _ticks(most: float) -> list[float]:
    """About six round values from 0 to `most`: 1, 2 or 5 times a power of ten apart."""
    raw = most / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [step * n for n in range(int(most / step * 1.0001) + 1)]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
