"""An error says in time that planning itself would exceed the memory of a small cgroup."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from edgespec import registry
from edgespec.errors import BudgetError
from edgespec.memory import cgroups, process
from edgespec.memory.process import MIB
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from gguf_files import tiny_llama


@pytest.fixture
def settings(tmp_path: Path) -> LoadSettings:
    model = tiny_llama().write(tmp_path / "tiny.gguf")
    registry.find(model)  # imports the runtime
    return LoadSettings(model=model, memory_budget="8GiB")


def test_a_group_that_planning_does_not_fit_into_is_named(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel killed the process without a word while it read a vocabulary."""
    monkeypatch.setattr(process, "total_bytes", lambda: 24 * MIB)
    with pytest.raises(BudgetError, match="planning"):
        session.plan(settings)


@pytest.mark.skipif(sys.platform != "linux", reason="pages of files are counted on Linux")
def test_pages_of_files_that_an_application_has_mapped_are_not_in_the_way(
    settings: LoadSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes(256 * MIB))
    anonymous = cgroups.table(Path("/proc/self/status"))["RssAnon"]
    monkeypatch.setattr(process, "total_bytes", lambda: anonymous + 128 * MIB)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert not mapped[:: mmap.PAGESIZE].strip(b"\0")
        assert process.process_rss_bytes() > process.total_bytes()
        assert session.plan(settings).budget_bytes


def test_a_group_that_planning_fits_into_is_not_refused(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "total_bytes", lambda: process.process_rss_bytes() + 32 * MIB)
    assert session.plan(settings).budget_bytes
