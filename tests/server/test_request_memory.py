"""Memory for requests: what a server keeps from the beginning, and what grammars take later."""

from __future__ import annotations

import pytest

import edgespec
from edgespec.completions import request_limits
from edgespec.errors import UsageError
from edgespec.grammar.specification import GRAMMAR_BYTES, json_schema
from edgespec.memory.budget import MIB, REQUESTS, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings
from sentences import refuses

RULES = edgespec.EngineSettings(remember=False, step_aside=False)
SCHEMA = json_schema({"enum": ["yes", "no"]})


def settings(budget: int | str = "4GiB", **others: object) -> LoadSettings:
    target = embedded_pair().target
    return LoadSettings(model=target, memory_budget=budget, ctx_size=256, threads=1, **others)


def kept_bytes(plan: MemoryPlan, what: str) -> int:
    return sum(row.nbytes for row in plan.rows if row.what == what)


def test_what_is_reserved_is_in_the_row_of_requests() -> None:
    plans = [edgespec.plan(settings(reserve=nbytes)) for nbytes in (0, 30 * MIB)]
    less, more = (kept_bytes(plan, REQUESTS) for plan in plans)
    assert more - less == 30 * MIB


@pytest.mark.parametrize(("n_ctx", "expected"), [(1024, 80 << 10), (131_072, 2_112 << 10)])
def test_bodies_are_as_large_as_the_context_may_need(n_ctx: int, expected: int) -> None:
    assert request_limits.max_body_bytes(n_ctx) == expected


def test_larger_bodies_take_more() -> None:
    assert request_limits.serving_bytes(MIB) > request_limits.serving_bytes(80 << 10) + 30 * MIB


def test_grammars_take_what_the_budget_has_beside_a_resident_model() -> None:
    whole = edgespec.plan(settings()).planned_bytes
    with edgespec.load(settings(whole + MIB), RULES) as session:
        assert not session.plan.paged
        with refuses(UsageError, figures=False):
            session.constraint(SCHEMA)
    with edgespec.load(settings(), RULES) as session:
        session.constraint(SCHEMA)
        assert kept_bytes(session.plan, "grammars") > GRAMMAR_BYTES
        assert session.plan.planned_bytes > whole


def test_weights_give_up_what_grammars_take() -> None:
    load = settings(adjustable_budget=True)
    whole = edgespec.plan(load).planned_bytes
    with edgespec.load(
        load.model_copy(update={"memory_budget": whole + 12 * MIB}), RULES
    ) as session:
        pinned = session.plan.pinned_bytes
        text = session.generate("answer:", grammar=SCHEMA, max_tokens=8).text
        assert text.strip().strip('"') in ("yes", "no")
        assert session.plan.pinned_bytes < pinned
        assert session.plan.planned_bytes <= whole + 12 * MIB
