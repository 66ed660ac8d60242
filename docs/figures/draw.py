"""Draws measured.toml as measured.svg with the picture of `edgespec bench --svg`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from edgespec.bench.charts import Bar, bars

FOLDER = Path(__file__).parent


def drawn() -> str:
    """The SVG of the stored figures."""
    figures = tomllib.loads((FOLDER / "measured.toml").read_text(encoding="utf-8"))
    rows = [
        Bar(row["label"], row["value"], row["value"], row["value"], row["text"], row["kind"])
        for row in figures["rows"]
    ]
    return bars(rows, figures["unit"])


if __name__ == "__main__":
    (FOLDER / "measured.svg").write_text(drawn(), encoding="utf-8")
