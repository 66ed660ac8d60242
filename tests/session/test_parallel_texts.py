"""Several generations of a session at once, on the embedded models: each text as it is alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec import load, plan
from edgespec.engine.settings import EngineSettings
from edgespec.memory import division, process
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.memory.needs import FOREST_SIZE, TREE_SIZES
from edgespec.models.embedded import embedded_pair
from edgespec.rules.sampling import SamplingParams
from edgespec.session.given import checked
from edgespec.session.opening import _Opening
from edgespec.session.session import Session
from edgespec.session.strategy import AUTO_TEXTS
from edgespec.settings.config import LoadSettings

PROMPTS = (
    "Once there was a wolf",
    "def main(argv):\n    ",
    "import os\n\nclass Reader:",
    "The moon",
)
N_TOKENS = 24


def opened(n_parallel: int, has_draft: bool) -> Session:
    pair = embedded_pair()
    settings = LoadSettings(
        model=pair.target,
        draft=pair.draft if has_draft else None,
        n_parallel=n_parallel,
        ctx_size=128,
        threads=2,
    )
    return load(settings, EngineSettings(remember=False, step_aside=False))


def written(session: Session, n: int) -> tuple[int, ...]:
    sampling = SamplingParams(temperature=0.8 * (n % 2), seed=n)
    return session.generate(PROMPTS[n % 4], sampling, N_TOKENS).tokens


@pytest.mark.slow
@pytest.mark.parametrize("has_draft", [False, True])
def test_texts_at_once_are_those_one_after_the_other(has_draft: bool) -> None:
    """Greedy and sampled ones, more than there are places for, twice over the same models."""
    with opened(1, has_draft) as session:
        alone = [written(session, n) for n in range(6)]
    with opened(3, has_draft) as session, ThreadPoolExecutor(6) as pool:
        assert session.n_parallel == 3
        together = list(pool.map(lambda n: written(session, n), range(6)))
        again = list(pool.map(lambda n: written(session, n), reversed(range(6))))
    assert together == alone
    assert again == alone[::-1]


def test_the_plan_says_what_several_texts_take() -> None:
    with opened(1, has_draft=False) as one, opened(3, has_draft=False) as three:
        [kv] = [row for row in one.plan.rows if row.what == "KV cache (128 tokens)"]
        [of_three] = [
            row for row in three.plan.rows if row.what == "KV cache (3 texts of 128 tokens)"
        ]
        assert kv.nbytes < of_three.nbytes
        assert one.plan.smallest_bytes < three.plan.smallest_bytes


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


def test_the_plan_says_what_a_place_takes() -> None:
    settings = LoadSettings(model=embedded_pair().target, ctx_size=256)
    one, two, three = (plan(settings.model_copy(update={"n_parallel": n})) for n in (1, 2, 3))

    def kv_bytes(its: MemoryPlan) -> int:
        return sum(row.nbytes for row in its.rows if row.what.startswith("KV cache"))

    cell_bytes = kv_bytes(one) // 256
    for its in (one, two, three):  # llama.cpp has cells in multiples of 256
        assert abs(its.text_bytes - kv_bytes(three) + kv_bytes(two)) < 256 * cell_bytes


@pytest.mark.slow
def test_several_texts_have_more_nodes_where_memory_is_better_spent_on_them() -> None:
    files = embedded_pair()

    def most_nodes(n_parallel: int) -> int:
        settings = LoadSettings(
            model=files.target, draft=files.draft, n_parallel=n_parallel, ctx_size=256
        )
        with _Opening(*checked(settings, None, None)) as opening:
            opening._models._prepare()
            return max(batch.max_nodes for batch in opening._models.target.needs().batches)

    assert most_nodes(1) == TREE_SIZES[0]
    assert most_nodes(8) == FOREST_SIZE
