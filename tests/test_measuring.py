"""The measurements behind the records can be asked for."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import measure
from measuring.budgets import SHARES, random_runs

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")


@pytest.mark.parametrize("name", measure.NAMES)
def test_every_measurement_explains_itself(name: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["measure.py", name, "--help"])
    with pytest.raises(SystemExit) as end:
        measure.main()
    assert not end.value.code
    assert f"usage: measure.py {name}" in capsys.readouterr().out


def test_no_random_run_is_refused_for_its_rule() -> None:
    """`budgets --seed 5` ended with the error of a rule that refuses log probabilities."""
    runs = [run for seed in range(20) for run in random_runs(list(SHARES), 300, seed)]
    extras = {
        rule: {run.extra for run in runs if run.guesses == rule}
        for rule in ("typical", "rejection")
    }
    assert {"logprobs", "prefixes"} & extras["typical"] == {"prefixes"}
    assert {"logprobs", "grammar"} & extras["rejection"] == {"logprobs"}
