"""A smaller KV cache is suggested where it helps, and never chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.errors import BudgetError
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.runtimes import ModelRequest
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.options import GgufOptions

REQUEST = ModelRequest(embedded_pair().target, "target", 1024, 1, 1, 1)
PLAN = MemoryPlan(20 * MIB, (), (), frozenset(), 0, paged=True, smallest_bytes=0)
"""The embedded target's cache has 3 MiB at 1,024 tokens."""


def suggestions(request: ModelRequest, plan: MemoryPlan | None) -> list[str]:
    prepared = runtime.prepare(request)
    try:
        return [note for note in prepared.notes(plan) if "would save" in note]
    finally:
        prepared.close()


def test_a_tight_plan_says_what_q8_0_would_save() -> None:
    [note] = suggestions(REQUEST, PLAN)
    assert "would save 1 MiB" in note
    assert "may change the text" in note


@pytest.mark.parametrize(
    ("request_", "plan"),
    [
        (REQUEST, replace(PLAN, budget_bytes=200 * MIB)),
        (REQUEST, replace(PLAN, paged=False)),
        (replace(REQUEST, options=GgufOptions(cache_type_k="q8_0", cache_type_v="q8_0")), PLAN),
        (replace(REQUEST, options=GgufOptions(flash_attn="off")), PLAN),
        (replace(REQUEST, owner="draft"), PLAN),
        (replace(REQUEST, ctx_size=256), None),
    ],
    ids=["roomy", "resident", "small already", "impossible", "draft", "hardly anything"],
)
def test_nothing_is_suggested_where_it_hardly_helps(
    request_: ModelRequest, plan: MemoryPlan | None
) -> None:
    assert not suggestions(request_, plan)


def test_a_budget_that_is_too_small_names_it() -> None:
    settings = LoadSettings(model=REQUEST.path, ctx_size=1024, memory_budget="8MiB")
    with pytest.raises(BudgetError, match=r"q8_0.* would save 1 MiB"):
        session.plan(settings)
