"""A budget that follows the free memory outlives another process that takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_files import tiny_llama
from memory_pressure import MIB, server_under_pressure, under_pressure


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
def test_a_text_goes_on_while_another_process_takes_the_memory(tmp_path: Path) -> None:
    model = tiny_llama(embedding=1024, layers=8, ffn=2048, hollow=True)
    path = model.write_hollow(tmp_path / "hollow.gguf")
    found = under_pressure(path, 320 * MIB, "auto:90MiB-250MiB", 60, pause_s=0.3)
    assert (found.n_killed, found.is_same, len(found.budgets)) == (0, True, 60)
    assert found.budgets[-1] < found.budgets[0] - 30 * MIB
    assert found.resident[-1] <= found.budgets[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
def test_a_server_writes_on_while_another_process_takes_the_memory(tmp_path: Path) -> None:
    model = tiny_llama(embedding=1024, layers=8, ffn=2048, hollow=True)
    path = model.write_hollow(tmp_path / "hollow.gguf")
    found = server_under_pressure(path, 320 * MIB, "auto:110MiB-250MiB", 16)
    assert (found.n_killed, found.is_same) == (0, True)
    assert found.budgets[-1] < found.budgets[0] - 30 * MIB
    assert found.resident[-1] <= found.budgets[-1]
    assert found.resident[-1] < found.resident[0]
