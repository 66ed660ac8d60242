"""Texts that go on past the context's end."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.transcript import FIRST_TOKENS, left_by_shift
from edgespec.rules.sampling import SamplingParams
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, assert_nothing_provisional, finish, generate
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language

LANGUAGE = random_language(1, N_VOCAB, order=6)
DRAFT = blend(LANGUAGE, random_language(2, N_VOCAB, order=6), 0.3)
SMALL = {"context_shift": True, "draft_max": 6}
SETTINGS = EngineSettings(step_aside=False, **SMALL)


def target(**options: Any) -> FakeModel:
    return FakeModel(LANGUAGE, N_VOCAB, n_ctx=40, **options)


def by_hand(n_tokens: int, n_keep: int = FIRST_TOKENS, n_ctx: int = 40) -> list[int]:
    """The greedy text of a model that is asked for one token at a time."""
    held, written = [*PROMPT], []
    for _ in range(n_tokens):
        if len(held) > n_ctx:
            n_dropped = (len(held) - n_keep) // 2
            held = held[:n_keep] + held[n_keep + n_dropped :]
        written.append(int(LANGUAGE(tuple(held)).argmax()))
        held.append(written[-1])
    return written


@pytest.mark.parametrize("length", [5, 12, 41, 1000])
@pytest.mark.parametrize("n_keep", [-1, 0, 7, 999, 2000])
def test_a_shift_keeps_the_beginning_and_half_of_what_follows(length: int, n_keep: int) -> None:
    held = list(range(length))
    left = left_by_shift(held, 9, n_keep)
    n_first = next(n for n, token in enumerate([*left, -1]) if token != n)
    assert len(left) < length
    assert left[n_first:] == tuple(held[length - len(left) + n_first :])
    assert n_first >= min({-1: 9, 0: FIRST_TOKENS}.get(n_keep, n_keep), length - 1 - FIRST_TOKENS)


@pytest.mark.parametrize(
    "options", [{}, {"gives_first": True}, {"tree_capable": False, "max_rollback": 4}]
)
def test_after_a_shift_the_text_is_what_the_model_writes_after_what_is_left(
    options: dict[str, Any],
) -> None:
    result = generate(target(**options), max_tokens=150, **SMALL)
    assert list(result.tokens) == by_hand(150)
    assert result.finish_reason == "length"
    assert result.dropped_tokens > 100


@pytest.mark.costly
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize("draft_ctx", [32, 40, 512])
def test_a_draft_changes_no_token_of_a_text_that_shifts(
    sampling: SamplingParams, draft_ctx: int
) -> None:
    alone = generate(target(), sampling=sampling, max_tokens=150, context_shift=True)
    draft = FakeModel(DRAFT, N_VOCAB, n_ctx=draft_ctx)
    pair = generate(target(), draft, sampling=sampling, max_tokens=150, **SMALL)
    assert pair.tokens == alone.tokens
    assert pair.dropped_tokens == alone.dropped_tokens > 0
    assert pair.speculation.accepted > 0


@pytest.mark.slow
def test_lines_of_a_recurrent_target_shift_at_the_same_token() -> None:
    options = {"tree_capable": False, "max_rollback": 4, "max_nodes": 5, "max_branches": 1}
    draft = FakeModel(DRAFT, N_VOCAB, n_ctx=40)
    pair = generate(target(**options), draft, max_tokens=150, **SMALL)
    assert list(pair.tokens) == by_hand(150)


def test_several_texts_shift_as_each_does_alone() -> None:
    models = target(n_texts=2), FakeModel(DRAFT, N_VOCAB, n_ctx=40, n_texts=2)
    with Engine(*models, SETTINGS) as engine:
        first = engine.generate(PROMPT, GREEDY, 60)
        next(first)
        second = engine.generate([*PROMPT, 5], WARM, 60)
        texts = [finish(second).tokens, finish(first).tokens]
        assert_nothing_provisional(*models)
    alone = generate(target(), prompt=[*PROMPT, 5], sampling=WARM, max_tokens=60, **SMALL)
    assert texts[0] == alone.tokens
    assert list(texts[1])[-59:] == by_hand(60)[-59:]


def test_the_next_turn_reads_what_is_new_alone() -> None:
    with Engine(target(), None, SETTINGS) as engine:
        finish(engine.generate(PROMPT, GREEDY, 60))
        held = engine.committed
        assert finish(engine.generate([*held, 5], GREEDY, 2)).reused_tokens == len(held)
