"""Several generations of a session at once, on the embedded models: each text as it is alone."""

from __future__ import annotations

import pytest

from edgespec import plan
from edgespec.errors import BudgetError
from edgespec.memory import division, process
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.memory.needs import FOREST_SIZE, TREE_SIZES
from edgespec.models.embedded import embedded_pair
from edgespec.session.opening import _Opening, checked
from edgespec.session.prepared_models import PreparedModels
from edgespec.session.strategy import AUTO_TEXTS
from edgespec.settings.config import LoadSettings


def test_several_texts_share_one_context_where_there_is_no_memory_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    monkeypatch.setattr(division, "PROCESS_SPREAD_BYTES", 0)
    settings = LoadSettings(model=embedded_pair().target, ctx_size=1024)
    one, eight = plan(settings), plan(settings.model_copy(update={"n_parallel": 8}))
    assert of_caches(eight)[0] == "KV cache (8192 tokens)"
    assert eight.smallest_bytes < one.smallest_bytes + 2 * of_caches(one)[1]
    least = {"n_parallel": 8, "memory_budget": eight.smallest_bytes}
    what, nbytes = of_caches(plan(settings.model_copy(update=least)))
    assert what == "KV cache (1024 tokens)"
    assert nbytes < of_caches(one)[1] * 2


def of_caches(its: MemoryPlan) -> tuple[str, int]:
    """Name and bytes of the row of keys and values."""
    [row] = [row for row in its.rows if row.what.startswith("KV cache")]
    return row.what, row.nbytes


@pytest.mark.slow
def test_auto_is_what_the_budget_affords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    settings = LoadSettings(model=embedded_pair().target, n_parallel="auto", ctx_size=128)
    roomy = plan(settings)
    assert roomy.n_parallel == AUTO_TEXTS[-1]
    alone = plan(settings.model_copy(update={"n_parallel": 1}))
    tight = settings.model_copy(update={"memory_budget": alone.smallest_bytes})
    assert plan(tight).n_parallel < AUTO_TEXTS[-1]


@pytest.mark.slow
def test_places_that_cost_a_text_alone_nothing_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them where the weights stay in memory, one where another would drive weights out."""
    monkeypatch.setattr(process, "footprint_bytes", lambda: 64 * MIB)
    settings = LoadSettings(model=embedded_pair().target, ctx_size=1024)
    sparing = settings.model_copy(update={"n_parallel": "auto", "keeps_one_text_fast": True})
    assert plan(sparing).n_parallel == AUTO_TEXTS[-1]
    monkeypatch.setattr(division, "PROCESS_SPREAD_BYTES", 0)
    paged = {"memory_budget": plan(settings).smallest_bytes + MIB}
    assert plan(settings.model_copy(update=paged)).paged
    assert plan(sparing.model_copy(update=paged)).n_parallel == 1


def test_a_place_takes_no_context_of_its_own() -> None:
    settings = LoadSettings(model=embedded_pair().target, ctx_size=1024)
    one, two = plan(settings), plan(settings.model_copy(update={"n_parallel": 2}))
    assert 0 < one.text_bytes == two.text_bytes < of_caches(one)[1] / 8


@pytest.mark.slow
def test_several_texts_have_more_nodes_where_memory_is_better_spent_on_them() -> None:
    files = embedded_pair()

    def most_nodes(n_parallel: int) -> int:
        settings = LoadSettings(
            model=files.target, draft=files.draft, n_parallel=n_parallel, ctx_size=256
        )
        with _Opening(*checked(settings, None, None), None) as opening:
            opening._models._prepare()
            return max(batch.max_nodes for batch in opening._models.target.needs().batches)

    assert most_nodes(1) == TREE_SIZES[0]
    assert most_nodes(8) == FOREST_SIZE


def test_the_smallest_budget_affords_auto_though_each_preparation_grows_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With Qwen2.5-Coder-1.5B, budgets up to 6 MiB above the smallest were refused."""
    prepare, prepared = PreparedModels._prepare, []

    def counted(models: PreparedModels) -> None:
        prepared.append(models)
        prepare(models)

    monkeypatch.setattr(PreparedModels, "_prepare", counted)
    monkeypatch.setattr(process, "footprint_bytes", lambda: (60 + 2 * len(prepared)) * MIB)
    settings = LoadSettings(model=embedded_pair().target, n_parallel="auto", memory_budget=1)
    with pytest.raises(BudgetError) as refused:
        plan(settings)
    for more in (0, 3 * MIB, 30 * MIB):
        prepared.clear()
        budget = (refused.value.smallest_bytes or 0) + more
        assert plan(settings.model_copy(update={"memory_budget": budget})).n_parallel >= 1
