"""The report as a page and as lines: all modes, nothing from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from bench_rows import report, row
from edgespec.bench.page import html_page
from edgespec.bench.table import summary_table
from edgespec.values import SourceStats

MODES = ("mmap", "llama-linear", "paged", "auto")


@pytest.fixture(scope="module")
def page() -> str:
    return html_page(
        report([row(mode, 1.0 + n, accepted=(0, 1, 3)) for n, mode in enumerate(MODES)])
    )


def test_the_page_is_well_formed(page: str):
    assert ElementTree.fromstring(page).tag == "html"


def test_every_mode_is_in_every_plot_and_table(page: str):
    sections = ElementTree.fromstring(page).findall(".//section")
    titles = {section.findtext("h2"): "".join(section.itertext()) for section in sections}
    assert len(titles) == 8
    for title, text in titles.items():
        if title != "Machine and command":
            assert [mode for mode in MODES if mode not in text] == [], title


def test_the_page_needs_nothing_from_elsewhere(page: str):
    without_namespace = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", without_namespace)


def test_the_page_has_colours_for_the_dark(page: str):
    assert "prefers-color-scheme:dark" in page


def test_what_was_given_is_escaped(page: str):
    assert "--modes &#x27;&lt;" in page or "--modes &lt;all&gt;" in page
    assert "a processor &amp; more" in page


def test_a_bench_without_a_row_is_still_a_page():
    assert ElementTree.fromstring(html_page(report([]))).tag == "html"


def test_the_table_has_a_line_for_every_mode():
    lines = summary_table(report([row(mode, 1.0) for mode in MODES]))
    for mode in (*MODES, "raw"):
        assert any(line.startswith(f"{mode} ") for line in lines)
    assert "resident: left out, it does not fit" in lines


def test_the_table_says_what_was_limited():
    assert any("by cgroup v1" in line for line in summary_table(report([row("auto", 1.0)])))


def test_no_name_of_a_row_begins_left_of_the_page():
    """A name ends at its bar; a letter is up to eight pixels wide."""
    name = "llama-linear-3-with-its-newer-defaults"
    page = html_page(report([row(name, 1.0), row("auto", 2.0)]))
    places = re.findall(rf'<text class="end name" x="([\d.]+)"[^>]*>{name}', page)
    assert len(places) >= 2
    assert all(float(x) >= 8 * len(name) for x in places)


def test_page_and_table_say_who_guessed():
    runs = [
        row("auto", 1.0, prompt, accepted=(0, 3), sources=[SourceStats("lookup", 900, 100 * n)])
        for n, prompt in enumerate("ab", 1)
    ]
    assert "auto: of the guesses that were verified stood lookup 300 of 1,800" in summary_table(
        report(runs)
    )
    cells = [cell.text for cell in ElementTree.fromstring(html_page(report(runs))).iter("td")]
    at = cells.index("lookup")
    assert cells[at - 1 : at + 4] == ["auto", "lookup", "1,800", "300", "17 %"]
