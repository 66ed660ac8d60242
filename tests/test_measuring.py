"""The measurements behind the records can be asked for."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import measure
from measuring import coverage

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")


@pytest.mark.parametrize("name", measure.NAMES)
def test_every_measurement_explains_itself(name: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["measure.py", name, "--help"])
    with pytest.raises(SystemExit) as end:
        measure.main()
    assert not end.value.code
    assert f"usage: measure.py {name}" in capsys.readouterr().out


def test_a_table_of_exports_replaces_the_last_one() -> None:
    page = f"before\n{coverage.START}\nold\n{coverage.END}\nafter\n"
    written = coverage.with_table(page, [("a", "made", "refused: it has no past")])
    assert "old" not in written
    assert written.startswith("before\n")
    assert written.endswith(f"{coverage.END}\nafter\n")
    assert "| a | made | refused: it has no past |  |  |  |  |\n" in written
    assert coverage.with_table(written, [("a", "made", "refused: it has no past")]) == written
