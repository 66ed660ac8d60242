"""The measurements behind the records can be asked for."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import measure

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")


@pytest.mark.parametrize("name", measure.NAMES)
def test_every_measurement_explains_itself(name: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["measure.py", name, "--help"])
    with pytest.raises(SystemExit) as end:
        measure.main()
    assert not end.value.code
    assert f"usage: measure.py {name}" in capsys.readouterr().out
