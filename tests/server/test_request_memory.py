"""The plan of a server keeps memory for its clients' requests."""

from types import SimpleNamespace

import pytest

import edgespec
from edgespec.errors import UsageError
from edgespec.grammar.specification import GRAMMAR_BYTES
from edgespec.memory import request_memory
from edgespec.models.embedded import embedded_pair
from edgespec.session.reserving import GRAMMARS, POOL, check_grammar_memory
from edgespec.settings.config import LoadSettings

MIB = 1 << 20


def planned(most_body_bytes: int | None) -> int:
    """Bytes of the row for requests."""
    settings = LoadSettings(model=embedded_pair().target, most_body_bytes=most_body_bytes)
    rows = edgespec.plan(settings).rows
    return sum(row.nbytes for row in rows if row.what == "requests")


def test_only_a_server_keeps_it():
    assert planned(None) == 0
    assert 4 * MIB < planned(0) < 16 * MIB


def test_larger_bodies_take_more():
    assert planned(1 * MIB) > planned(0) + 30 * MIB


@pytest.mark.parametrize(("n_ctx", "expected"), [(1024, 80 << 10), (131_072, 2_112 << 10)])
def test_bodies_are_as_large_as_the_context_may_need(n_ctx, expected):
    assert request_memory.max_body_bytes(n_ctx) == expected


def test_texts_at_once_share_what_grammars_and_large_answers_take():
    def kept(n_parallel: int) -> dict[str, int]:
        settings = LoadSettings(
            model=embedded_pair().target, n_parallel=n_parallel, grammars=True, logprobs=True
        )
        rows = edgespec.plan(settings).rows
        return {row.what: row.nbytes for row in rows if row.owner == "process"}

    one, eight = kept(1), kept(8)
    assert one[POOL] == eight[POOL] == GRAMMAR_BYTES + request_memory.ANSWER_BYTES
    assert one[GRAMMARS] == eight[GRAMMARS]


@pytest.mark.parametrize(
    ("grammars", "answers", "n_texts", "mib"),
    [(False, False, 8, 0), (True, False, 1, 8), (True, False, 8, 16), (False, True, 8, 8)],
)
def test_the_pool_holds_any_one_request(grammars, answers, n_texts, mib):
    assert request_memory.pool_bytes(grammars * GRAMMAR_BYTES, answers, n_texts) == mib * MIB


@pytest.mark.slow
def test_spare_memory_for_grammars_is_kept_only_where_the_budget_has_it():
    def plan(budget: int | str, spare: bool):
        target = embedded_pair().target
        return edgespec.plan(LoadSettings(model=target, memory_budget=budget, spare_grammars=spare))

    ample = plan("4GiB", True)
    assert any(row.what == GRAMMARS for row in ample.rows)
    tight = plan(plan("4GiB", False).planned_bytes + 4 * MIB, True)
    assert not any(row.what == GRAMMARS for row in tight.rows)
    assert any("structured answers are refused" in note for note in tight.notes)
    with pytest.raises(UsageError, match="structured answers need"):
        check_grammar_memory(tight, SimpleNamespace(n_vocab=512, piece=lambda token: b"it"))
