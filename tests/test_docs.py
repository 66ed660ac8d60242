"""The papers say what is there: the README is short, links lead somewhere, figures are drawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import edgespec
from edgespec import errors

ROOT = Path(__file__).parents[1]
PAPERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAPERS += [*(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md"]
MAX_WORDS = 700
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"`((?:edgespec|tests|runtimes|docs|configs|models|examples)/[\w/.-]*)`")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MAX_WORDS


def test_the_readme_begins_with_the_demo() -> None:
    (first, second), *_ = (
        block.splitlines()[1:-1] for block in CODE.findall((ROOT / "README.md").read_text())
    )
    assert first == "make demo"
    assert second.startswith(".venv/bin/edgespec generate ")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_links_lead_to_files(paper: Path) -> None:
    links = LINK.findall(CODE.sub("", paper.read_text(encoding="utf-8")))
    assert not [link for link in links if not (paper.parent / link).exists()]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_places_in_the_code_exist(paper: Path) -> None:
    places = set(PLACE.findall(CODE.sub("", paper.read_text(encoding="utf-8"))))
    places = {place for place in places if not re.search("NAME|NNNN", place)}
    assert not [place for place in places if not (ROOT / place).exists()]


def test_the_reference_has_every_public_name() -> None:
    shown = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").split()
    missing = {name for name in edgespec.__all__ if f"edgespec.{name}" not in shown}
    assert not {name for name in missing if not hasattr(errors, name)}


def test_the_figure_is_what_the_bench_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/figures/draw.py"))["drawn"]()
    assert drawn == (ROOT / "docs/figures/measured.svg").read_text(encoding="utf-8")
