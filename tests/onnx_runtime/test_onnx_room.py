"""An error says in time that reading an ONNX model would exceed the memory of a small group."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec import runtimes
from edgespec.errors import BudgetError
from edgespec.memory import process
from edgespec.memory.process import MIB
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from onnx_files import write_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = write_llama(tmp_path)
    runtimes.find(path)  # imports the runtime
    return path


def test_a_group_that_reading_does_not_fit_into_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "total_bytes", lambda: 24 * MIB)
    with pytest.raises(BudgetError, match=r"reading .*model.onnx takes about .*: raise .*limit"):
        session.plan(LoadSettings(model=model, memory_budget="8GiB"))


def test_a_group_that_planning_fits_into_is_not_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "total_bytes", lambda: process.process_rss_bytes() + 32 * MIB)
    assert session.plan(LoadSettings(model=model, memory_budget="8GiB")).budget_bytes
