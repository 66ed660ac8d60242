"""Every record of a decision has a status, is short, links to what exists and is in the index;
whatever cites a number finds a record or a line of the history."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "decisions"
HISTORY = FOLDER / "history.md"
MAX_WORDS = 300
RECORDS = {
    path: path.read_text(encoding="utf-8")
    for path in sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]-*.md"))
}
STATUS = re.compile(r"^Status: accepted", re.MULTILINE)
CITATION = re.compile(r"(?:decision|record) (0\d{3})\b|decisions/(\d{4})-")
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def words(text: str) -> int:
    """Words of a record's body: no title, status, tables, link targets or link to measurements."""
    left_out = ("# ", "Status", "**Status", "|", "Figures:")
    lines = [line for line in text.splitlines() if not line.startswith(left_out)]
    return len(re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).split())


def test_a_record_has_a_title_and_a_status() -> None:
    assert not [
        path.name
        for path, text in RECORDS.items()
        if not (text.startswith("# ") and STATUS.search(text))
    ]


def test_a_record_is_short() -> None:
    found = {path.name: words(text) for path, text in RECORDS.items()}
    assert not {name: n for name, n in found.items() if n > MAX_WORDS}


def test_a_record_links_to_files_that_exist() -> None:
    links = [(path.name, link) for path, text in RECORDS.items() for link in LINK.findall(text)]
    assert not [(name, link) for name, link in links if not (FOLDER / link).exists()]


def test_the_index_names_every_record_once() -> None:
    named = LINK.findall((FOLDER / "index.md").read_text(encoding="utf-8"))
    assert sorted({*named} - {HISTORY.name}) == [record.name for record in RECORDS]
    assert len(set(named)) == len(named)


def test_record_numbers_are_unique() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(set(numbers)) == len(numbers)


def test_the_history_names_no_record_that_still_decides() -> None:
    past = re.findall(r"^\| (\d{4}) ", HISTORY.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(past)) == len(past)
    assert not {record.name[:4] for record in RECORDS}.intersection(past)


def test_every_number_that_is_cited_is_a_record_or_in_the_history() -> None:
    known = {record.name[:4] for record in RECORDS}
    known |= set(re.findall(r"^\| (\d{4}) ", HISTORY.read_text(encoding="utf-8"), re.MULTILINE))
    assert not {place: number for place, number in citations() if number not in known}


def test_code_and_guides_cite_records_that_still_decide() -> None:
    known = {record.name[:4] for record in RECORDS}
    places = ((place, number) for place, number in citations() if "docs/measurements" not in place)
    assert not {place: number for place, number in places if number not in known}


@cache
def citations() -> list[tuple[str, str]]:
    """Places and numbers of records that the repository's texts cite outside the records."""
    found = []
    for folder in ("edgespec", "runtimes", "tests", "examples", "models", "configs", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".toml", ".sh"} and path.parent != FOLDER:
                cited = CITATION.finditer(path.read_text(encoding="utf-8"))
                found += [(str(path.relative_to(ROOT)), match[1] or match[2]) for match in cited]
    return found
