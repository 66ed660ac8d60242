"""Every record of a decision has a status, is short, links to what exists and is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "decisions"
MAX_WORDS = 300
RECORDS = sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]-*.md"))
STATUS = re.compile(r"^\*{0,2}Status:?\*{0,2}:? (accepted|superseded by \[\d{4}\]\()", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")

each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)


def words(text: str) -> int:
    """Words of a record's body: no title, status, tables, link targets or link to measurements."""
    left_out = ("# ", "Status", "**Status", "|", "Figures:")
    lines = [line for line in text.splitlines() if not line.startswith(left_out)]
    return len(re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).split())


@each_record
def test_a_record_has_a_title_and_a_status(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert STATUS.search(text)


@each_record
def test_a_record_is_short(record: Path) -> None:
    assert words(record.read_text(encoding="utf-8")) <= MAX_WORDS


@each_record
def test_a_record_links_to_files_that_exist(record: Path) -> None:
    links = LINK.findall(record.read_text(encoding="utf-8"))
    assert not [link for link in links if not (FOLDER / link).exists()]


def test_the_index_names_every_record_once() -> None:
    named = LINK.findall((FOLDER / "index.md").read_text(encoding="utf-8"))
    assert sorted(named) == [record.name for record in RECORDS]


def test_record_numbers_are_unique() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(set(numbers)) == len(numbers)
