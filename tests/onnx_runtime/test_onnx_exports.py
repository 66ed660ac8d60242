"""The table of exports is made by a script, whose exporters alone are missing here."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from genai_models import LLAMA
from measuring import exports

MEMORY = re.compile(r"(\d+) of (\d+) \(\d\.\d\d\)")


def table(page: str) -> list[list[str]]:
    """Cells of the rows between the markers, head included."""
    lines = page.partition(exports.START)[2].partition(exports.END)[0].split("\n")
    cells = [line.split("|")[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in cells]


def test_each_kind_of_export_has_a_row_on_the_page() -> None:
    head, _, *rows = table(exports.PAGE.read_text(encoding="utf-8"))
    assert head == ["export", "made by", *exports.CELLS]
    assert [tuple(row[:2]) for row in rows] == [*exports.MADE_BY.items()]


def test_a_new_table_replaces_the_last_one() -> None:
    page = f"before\n{exports.START}\nold\n{exports.END}\nafter\n"
    refused = [("a", "made", "refused: it has no past")]
    written = exports.with_table(page, refused)
    assert "old" not in written
    assert written.startswith("before\n")
    assert written.endswith(f"{exports.END}\nafter\n")
    assert table(written)[2] == ["a", "made", "refused: it has no past", *[""] * 6]
    assert exports.with_table(written, refused) == written


@pytest.mark.slow
def test_a_row_is_measured_in_processes_of_its_own() -> None:
    lengths = (4, 128)
    cells = exports.cells(LLAMA, LLAMA, exports.answer("plain", LLAMA, *lengths), *lengths)
    for cell in (cells.pop(0), cells.pop(2)):
        found = MEMORY.fullmatch(cell)
        assert found and int(found[1]) <= int(found[2])
    assert cells == ["4, 4", "4, 4", "0.0", "4, 4", "4, 4"]


@pytest.mark.slow
def test_what_is_refused_says_so_in_its_row() -> None:
    answer = exports.answer("plain", LLAMA, 4, 1 << 20)
    assert "ctx_size=1048576` is more than the 256 tokens" in answer
    assert exports.cells(LLAMA, LLAMA, answer, 4, 1 << 20) == [answer]
