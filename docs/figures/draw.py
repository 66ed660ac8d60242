"""Draws measured.toml as measured.svg, each panel with the picture of `edgespec bench --svg`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from edgespec.bench.charts import AXIS, STEP, WIDTH, Bar, bars

FOLDER = Path(__file__).parent
HEADING, GAP = 40, 14


def drawn() -> str:
    """The SVG of the stored figures."""
    figures = tomllib.loads((FOLDER / "measured.toml").read_text(encoding="utf-8"))
    parts, top = [], 0
    for panel in figures["panels"]:
        rows = [
            Bar(row["label"], row["value"], row["value"], row["value"], row["text"], row["kind"])
            for row in panel["rows"]
        ]
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


if __name__ == "__main__":
    (FOLDER / "measured.svg").write_text(drawn(), encoding="utf-8")
