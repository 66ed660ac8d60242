"""An error says in time that planning itself would exceed the memory of a small cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import BudgetError
from edgespec.memory import process
from edgespec.memory.process import MIB
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from gguf_files import tiny_llama


@pytest.fixture
def settings(tmp_path: Path) -> LoadSettings:
    return LoadSettings(model=tiny_llama().write(tmp_path / "tiny.gguf"), memory_budget="8GiB")


def test_a_group_that_planning_does_not_fit_into_is_named(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel killed the process without a word while it read a vocabulary."""
    monkeypatch.setattr(process, "total_bytes", lambda: process.process_rss_bytes() + MIB)
    with pytest.raises(BudgetError, match=r"planning .* takes about .*: raise .*limit"):
        session.plan(settings)


def test_a_group_that_planning_fits_into_is_not_refused(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "total_bytes", lambda: process.process_rss_bytes() + 32 * MIB)
    assert session.plan(settings).budget_bytes
