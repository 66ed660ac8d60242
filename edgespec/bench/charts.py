"""Plots as inline SVG: bars with whiskers, stacked bars, histograms, curves. Values in, markup out.

Colours are CSS classes, which the page defines for light and for dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 960
LABEL = 130
"""Least room for names at the left of horizontal bars."""
MOST_LABEL = 400
CHARACTER = 8.0
"""As wide as the widest letters that names are made of, in the page's bold 13 pixels."""
VALUE = 150
"""Room for figures at their right."""
BAR, STEP, AXIS = 18, 32, 26


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar; `least` and `most` are the ends of its whisker."""

    label: str
    value: float
    least: float
    most: float
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a stacked bar."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Stack:
    label: str
    parts: Sequence[Part]
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A small plot among others with the same axes."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Series:
    """A line over time; `mark` is where something begins."""

    panel: Panel
    points: Sequence[tuple[float, float]]
    mark: float


def bars(rows: Sequence[Bar], unit: str, line: tuple[float, str] | None = None) -> str:
    """Horizontal bars from zero, and a vertical line to hold them against."""
    most = max([row.most for row in rows] + ([line[0]] if line else []), default=0.0)
    left = _room_for([row.label for row in rows])
    scale = _Scale(most, left, WIDTH - VALUE)
    height = STEP * len(rows) + AXIS + (16 if line else 0)
    top = 16 if line else 0
    parts = [_axis(scale, top, top + STEP * len(rows), unit)]
    for i, row in enumerate(rows):
        y = top + i * STEP + (STEP - BAR) / 2
        middle = y + BAR / 2
        end = scale.at(row.value)
        parts.append(
            f"<g><title>{escape(row.label)}: {escape(row.text)}</title>"
            + _text(left - 10, middle, row.label, "end name")
            + _rect(left, y, end - left, BAR, row.kind)
        )
        if row.most > row.least:
            low, high = scale.at(row.least), scale.at(row.most)
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}'
                f'M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"/>'
            )
        beyond = max(end, scale.at(row.most), scale.at(line[0]) if line else 0.0)
        parts.append(_text(beyond + 8, middle, row.text, "value") + "</g>")
    if line:
        x = scale.at(line[0])
        parts.append(f'<path class="limit" d="M{x:.1f} {top}V{top + STEP * len(rows)}"/>')
        parts.append(_text(x, 7, line[1], "middle small"))
    return _svg(WIDTH, height, parts)


def stacks(rows: Sequence[Stack], unit: str) -> str:
    """Horizontal bars made of parts, each coloured by its name."""
    most = max((sum(part.value for part in row.parts) for row in rows), default=0.0)
    left = _room_for([row.label for row in rows])
    scale = _Scale(most, left, WIDTH - VALUE)
    parts = [_axis(scale, 0, STEP * len(rows), unit)]
    for i, row in enumerate(rows):
        y = i * STEP + (STEP - BAR) / 2
        parts.append(_text(left - 10, y + BAR / 2, row.label, "end name"))
        done = 0.0
        for part in row.parts:
            x, end = scale.at(done), scale.at(done + part.value)
            if end - x > 0.2:
                # two pixels of ground between neighbours, where there is room for them
                gap = 2 if end - x > 4 else 0
                title = f"<title>{escape(part.name)}: {part.value:.3g} {escape(unit)}</title>"
                parts.append(f"<g>{title}{_rect(x, y, end - x - gap, BAR, part.name)}</g>")
            done += part.value
        parts.append(_text(scale.at(done) + 8, y + BAR / 2, row.text, "value"))
    return _svg(WIDTH, STEP * len(rows) + AXIS, parts)


def histogram(panel: Panel, shares: Sequence[float], n_bins: int, most: float) -> str:
    """One panel: `shares[n]` of the rounds accepted n tokens. Panels share `n_bins` and `most`."""
    width, height, base = 300, 150, 118
    slot = (width - 40) / n_bins
    parts = [_panel_title(panel)]
    parts.append(f'<path class="axis" d="M30 {base}H{width - 10}"/>')
    for n in range(n_bins):
        share = shares[n] if n < len(shares) else 0.0
        x, tall = 30 + n * slot, 76 * share / most
        if share:
            title = f"<title>{n} accepted: {100 * share:.0f}% of the rounds</title>"
            bar = _rect(x + 1, base - tall, slot - 2, tall, "draft")
            parts.append(f"<g>{title}{bar}</g>")
        if n % max(1, n_bins // 8) == 0:
            parts.append(_text(x + slot / 2, base + 12, str(n), "middle small"))
    if shares:
        top = max(shares)
        x = 30 + (shares.index(top) + 0.5) * slot
        parts.append(_text(x, base - 76 * top / most - 8, f"{100 * top:.0f}%", "middle small"))
    return _svg(width, height, parts, "panel")


def memory(series: Series, most: float, limit: tuple[float, str] | None) -> str:
    """One panel of MiB over seconds. All panels share `most`; each has its own time."""
    width, height, base, left = 300, 160, 128, 44
    until = max((at for at, _ in series.points), default=1.0) or 1.0
    across, up = _Scale(until, left, width - 12), _Scale(most, base, 34)
    parts = [_panel_title(series.panel)]
    for tick in up.ticks(3):
        y = up.at(tick)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - 12}"/>')
        parts.append(_text(left - 6, y, f"{tick:g}", "end small"))
    if limit:
        y = up.at(limit[0])
        parts.append(f'<path class="limit" d="M{left} {y:.1f}H{width - 12}"/>')
    if series.points:
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in series.points)
        first, last = across.at(series.points[0][0]), across.at(series.points[-1][0])
        parts.append(
            f'<polygon class="area" points="{first:.1f},{base} {path} {last:.1f},{base}"/>'
        )
        parts.append(f'<polyline class="line" points="{path}"/>')
    if limit:
        parts.append(_text(width - 12, up.at(limit[0]) - 8, limit[1], "end small"))
    x = across.at(min(series.mark, until))
    parts.append(f'<path class="mark" d="M{x:.1f} 34V{base}"/>')
    parts.append(f'<path class="axis" d="M{left} {base}H{width - 12}"/>')
    parts.append(_text(left, base + 12, "0 s", "middle small"))
    parts.append(_text(width - 12, base + 12, f"{until:.0f} s", "end small"))
    if left + 30 < x < width - 60:
        parts.append(_text(x, base + 12, "decoding", "middle small"))
    return _svg(width, height, parts, "panel")


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined, or by themselves; `kind` colours them."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str
    joined: bool = True


def curves(lines: Sequence[Line], x_unit: str, y_unit: str, mark: tuple[float, str] | None) -> str:
    """Lines over a common axis from zero, and a vertical line where something begins."""
    height, base, left, right = 320, 280, 60, WIDTH - 30
    points = [point for line in lines for point in line.points]
    across = _Scale(
        max([x for x, _ in points] + ([mark[0]] if mark else []), default=1), left, right
    )
    up = _Scale(1.08 * max((y for _, y in points), default=1.0), base, 24)
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
        parts.append(_text(left - 8, y, f"{tick:g}", "end small"))
    ticks = ((across.at(tick), f"{tick:g}") for tick in across.ticks(8))
    parts += (_text(x, base + 14, text, "middle small") for x, text in ticks)
    parts.append(f'<path class="axis" d="M{left} {base}H{right}"/>')
    parts.append(_text(left, 10, y_unit, "small"))
    parts.append(_text(right, base + 30, x_unit, "end small"))
    if mark:
        x = across.at(mark[0])
        parts.append(f'<path class="limit" d="M{x:.1f} 24V{base}"/>')
        parts.append(_text(x, 12, mark[1], "middle small"))
    for line in lines:
        at = [(across.at(x), up.at(y)) for x, y in line.points]
        if line.joined:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            parts.append(f'<polyline class="curve {escape(line.kind)}-line" points="{path}"/>')
        for (x, y), (value, height_of) in zip(at, line.points, strict=True):
            title = f"{line.name}: {height_of:.2f} {y_unit} at {value:.2f} {x_unit}"
            parts.append(
                f'<g><title>{escape(title)}</title><circle class="{escape(line.kind)}" '
                f'cx="{x:.1f}" cy="{y:.1f}" r="4"/></g>'
            )
    return _svg(WIDTH, height, parts)


class _Scale:
    """Values from zero to somewhat above `most`, laid out from pixel `start` to `end`."""

    def __init__(self, most: float, start: float, end: float) -> None:
        self._most = most if most > 0 else 1.0
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        return self._start + (self._end - self._start) * min(value / self._most, 1.0)

    def ticks(self, about: int = 6) -> list[float]:
        """Round values: 1, 2 or 5 times a power of ten apart."""
        raw = self._most / about
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
        return [step * n for n in range(int(self._most / step * 1.0001) + 1)]


def _room_for(labels: Iterable[str]) -> float:
    """Pixels at the left that show every name whole."""
    longest = max(map(len, labels), default=0)
    return min(max(LABEL, 10 + CHARACTER * longest), MOST_LABEL)


def _axis(scale: _Scale, top: float, bottom: float, unit: str) -> str:
    parts = []
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>')
        parts.append(_text(x, bottom + 12, f"{tick:g}", "middle small"))
    parts.append(_text(WIDTH - VALUE + 16, bottom + 12, unit, "small"))
    return "".join(parts)


def _panel_title(panel: Panel) -> str:
    return _text(4, 10, panel.title, "name") + _text(296, 10, panel.text, "end small")


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
        f'height="{max(height, 0):.1f}" rx="1.5"/>'
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Iterable[str], kind: str = "wide") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
