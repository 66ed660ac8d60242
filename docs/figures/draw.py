"""Draws measured.toml as measured.svg: a panel of bars for each table."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEADING, GAP = 40, 14
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
.grid{stroke:var(--grid)}
.theirs{fill:var(--theirs)}.ours{fill:var(--ours)}.best{fill:var(--best)}"""


def drawn() -> str:
    """The SVG of the stored figures."""
    figures = tomllib.loads((FOLDER / "measured.toml").read_text(encoding="utf-8"))
    parts, top = [], 0
    for panel in figures["panels"]:
        rows = panel["rows"]
        height = int(STEP * len(rows) + AXIS)
        inner = bars(rows, figures["unit"]).rstrip()
        parts += [
            f'<text class="name" x="10" y="{top + 12}">{panel["title"]}</text>',
            f'<text class="small" x="10" y="{top + 29}">{panel["conditions"]}</text>',
            inner.replace(
                "<svg ", f'<svg y="{top + HEADING}" width="{WIDTH}" height="{height}" ', 1
            ),
        ]
        top += HEADING + height + GAP
    return (
        f'<svg viewBox="0 0 {WIDTH} {top}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>\n"
    )


def bars(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """SVG of horizontal bars that begin at zero; colours follow the viewer's theme."""
    most = max(row["value"] for row in rows)
    left = min(
        max(MIN_LABEL, 10 + CHARACTER * max(len(row["label"]) for row in rows)),
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
        middle, end = y + BAR / 2, x_of(row["value"])
        parts.append(_text(left - 10, middle, row["label"], "end name"))
        parts.append(
            f'<rect class="{escape(row["kind"])}" x="{left:.1f}" y="{y:.1f}" '
            f'width="{max(end - left, 0.5):.1f}" height="{BAR}" rx="1.5"/>'
        )
        parts.append(_text(end + 8, middle, row["text"], "value"))
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


if __name__ == "__main__":
    (FOLDER / "measured.svg").write_text(drawn(), encoding="utf-8")
