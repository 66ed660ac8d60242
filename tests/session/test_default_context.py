"""The context that a model has where none is asked for, and what texts at once take of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.memory import process
from edgespec.memory.budget import MIB, REQUESTS, MemoryPlan
from edgespec.session.opening import plan
from edgespec.session.strategy import MOST_FOR_ROOM
from edgespec.settings.config import DEFAULT_CTX_SIZE, LoadSettings
from gguf_files import U32, tiny_llama
from zoo_files import write_model
from zoo_species import Species

N_TRAINED = 32768


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadSettings:
    """Settings of a model of 60 MiB whose whole context takes 64 MiB."""
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    model = tiny_llama(embedding=512, layers=8, heads=8, kv_heads=1, head_size=64, ffn=4096)
    model.metadata["llama.context_length"] = (U32, N_TRAINED)
    return LoadSettings(model=model.write(tmp_path / "m.gguf"), memory_budget="2GiB", threads=1)


def cache_bytes(its: MemoryPlan) -> int:
    return sum(row.nbytes for row in its.rows if row.what.startswith("KV cache"))


def test_the_context_is_what_the_model_was_trained_on_where_there_is_memory(
    settings: LoadSettings,
) -> None:
    assert plan(settings).ctx_size == N_TRAINED
    asked = settings.model_copy(update={"ctx_size": 8192})
    assert plan(asked).ctx_size == 8192


def test_several_texts_share_it(settings: LoadSettings) -> None:
    one = plan(settings.model_copy(update={"ctx_size": N_TRAINED}))
    eight = plan(settings.model_copy(update={"ctx_size": N_TRAINED, "n_parallel": 8}))
    assert eight.ctx_size == one.ctx_size == N_TRAINED
    assert cache_bytes(eight) < 1.05 * cache_bytes(one)


@pytest.mark.slow
@pytest.mark.parametrize("n_parallel", [1, 8])
def test_it_costs_short_texts_little_and_changes_no_smallest_budget(
    settings: LoadSettings, n_parallel: int
) -> None:
    settings = settings.model_copy(update={"n_parallel": n_parallel})
    least = settings.model_copy(update={"ctx_size": DEFAULT_CTX_SIZE})
    smallest = plan(settings).smallest_bytes
    assert smallest == plan(least).smallest_bytes
    lengths = []
    for budget in (smallest, *(smallest + n * MIB for n in range(8, 130, 24))):
        chosen = plan(settings.model_copy(update={"memory_budget": budget}))
        usual = plan(least.model_copy(update={"memory_budget": budget}))
        assert chosen.planned_bytes <= budget
        assert chosen.smallest_bytes == smallest
        assert chosen.paged == usual.paged
        lengths.append(chosen.ctx_size)
        if n_parallel == 1:
            usual_bytes = usual.least_bytes_per_pass
            assert chosen.least_bytes_per_pass <= MOST_FOR_ROOM * usual_bytes
    assert lengths[0] == DEFAULT_CTX_SIZE < max(lengths) <= N_TRAINED


def test_a_budget_that_moves_keeps_room_to_move(settings: LoadSettings) -> None:
    assert plan(settings).ctx_size > DEFAULT_CTX_SIZE
    moving = settings.model_copy(update={"adjustable_budget": True})
    assert plan(moving).ctx_size == DEFAULT_CTX_SIZE


def test_requests_as_long_as_the_context_have_memory(settings: LoadSettings) -> None:
    def of_requests(its: MemoryPlan) -> int:
        return sum(row.nbytes for row in its.rows if row.what == REQUESTS)

    reserved = plan(settings.model_copy(update={"reserve_of_token": 1000}))
    assert of_requests(reserved) - of_requests(plan(settings)) == 1000 * N_TRAINED


def test_a_model_whose_text_depends_on_it_has_the_usual_one(tmp_path: Path) -> None:
    """The rotation factors of longrope follow the context that is asked for."""
    changes = {"context_length": N_TRAINED}
    path = write_model(tmp_path / "m.gguf", Species("phi3", variant="longrope"), changes)
    assert plan(LoadSettings(model=path, memory_budget="2GiB")).ctx_size == DEFAULT_CTX_SIZE
