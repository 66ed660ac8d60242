"""`edgespec plan`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edgespec.cli import command_line
from edgespec.session import session
from fake_session import MIB, PLAN


def test_plan_prints_who_gets_what(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(session, "plan", lambda *args: PLAN)
    assert command_line.main(["plan"]) == 0
    out = capsys.readouterr().out
    assert "interpreter" in out
    assert "40.0 MiB" in out
    assert command_line.main(["plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned_bytes"] == 90 * MIB


def test_plan_tells_how_many_texts_fit(monkeypatch: pytest.MonkeyPatch, capsys):
    asked = []

    def plan(load, *others):
        asked.append(load.n_parallel)
        return replace(PLAN, n_parallel=3)

    monkeypatch.setattr(session, "plan", plan)
    assert command_line.main(["plan", "-np", "auto"]) == 0
    assert "Up to 3 texts are generated at once." in capsys.readouterr().out
    assert command_line.main(["plan", "--parallel", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_parallel"] == 3
    assert asked == ["auto", 3]


def test_a_read_limit_is_the_disk(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(session, "plan", lambda *args: replace(PLAN, paged=True))
    assert command_line.main(["plan", "--read-limit", "1M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["disk_bytes_per_s"] == 1_000_000
