"""Drafting beside a pass, and stepping aside where drafting does not pay."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.values import GenerationResult
from engine_cases import (
    COUNTING,
    GREEDY,
    N_VOCAB,
    PROMPT,
    WARM,
    Failing,
    assert_nothing_provisional,
    counting,
    finish,
    generate,
    waits_for_steps_of,
)
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, Language, blend, fixed_text, random_language

# Drafting beside a pass


def test_growth_beside_the_pass_serves_the_next_round() -> None:
    draft = counting()
    target = counting(stall_share=0.9, hook=waits_for_steps_of(draft, 6))
    result = generate(
        target, draft, max_tokens=30, n_candidates=1, fallback="fixed", draft_max=3, lookup=False
    )
    assert result.speculation.provisional_kept > 0
    assert result.speculation.provisional_kept <= result.speculation.provisional_drafted
    assert result.speculation.accepted_lengths[:3] == (3, 3, 3)


@pytest.mark.parametrize(
    ("stall_share", "overlap"), [(0.0, True), (0.9, False)], ids=["no stall", "switched off"]
)
def test_nothing_is_drafted_beside_a_pass(stall_share: float, overlap: bool) -> None:
    target = counting(stall_share=stall_share, hook=lambda model: threading.Event().wait(0.002))
    result = generate(target, counting(), max_tokens=12, no_overlap=not overlap)
    assert result.speculation.provisional_drafted == 0


def test_an_error_of_the_draft_beside_a_pass_reaches_the_caller() -> None:
    draft = counting()
    target = counting(stall_share=0.9, hook=waits_for_steps_of(draft, 3))
    settings = EngineSettings(
        n_candidates=1, fallback="fixed", draft_max=1, step_aside=False, lookup=False
    )
    draft.hook = Failing(3, ModelError("out of memory"))
    with Engine(target, draft, settings) as engine:
        with pytest.raises(ModelError, match="out of memory"):
            finish(engine.generate(PROMPT, GREEDY, 30))
        assert_nothing_provisional(target, draft)


# Never slower than no draft


class WorkClock:
    """Seconds that pass only when a model works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def costs(self, seconds: Callable[[FakeModel], float]) -> Callable[[FakeModel], None]:
        def hook(model: FakeModel) -> None:
            self.now += seconds(model)

        return hook


def timed(
    n_tokens: int, draft_step_s: float, target_language: Language, draft_language: Language
) -> tuple[float, GenerationResult]:
    """A text and its seconds when a pass takes one and a draft step takes `draft_step_s`."""
    clock = WorkClock()
    target = FakeModel(target_language, N_VOCAB, hook=clock.costs(lambda model: 1.0), n_ctx=4096)
    draft = FakeModel(
        draft_language, N_VOCAB, hook=clock.costs(lambda model: draft_step_s), n_ctx=4096
    )
    # lookup costs this clock nothing, and would find all that such a small language says
    with Engine(target, draft, EngineSettings(no_overlap=True, lookup=False), clock) as engine:
        result = finish(engine.generate(PROMPT, WARM, n_tokens))
    return clock.now, result


@pytest.mark.slow
def test_a_draft_that_never_helps_costs_a_few_percent_of_a_long_text() -> None:
    seconds, _ = timed(1500, 0.1, COUNTING, fixed_text([11], N_VOCAB, 0))
    assert seconds < 1.05 * 1500


@pytest.mark.slow
def test_a_draft_that_helps_goes_on() -> None:
    seconds, _ = timed(800, 0.01, COUNTING, COUNTING)
    assert seconds < 0.2 * 800


@pytest.mark.slow
def test_stepping_aside_and_back_changes_no_token() -> None:
    language = random_language(5, N_VOCAB)
    half_right = blend(language, random_language(6, N_VOCAB), 0.5)
    _, result = timed(300, 0.15, language, half_right)
    assert 0 < result.speculation.accepted_lengths.count(0) < result.speculation.rounds
    assert {cost.verified > 0 for cost in result.speculation.round_costs} == {True, False}
    alone = generate(FakeModel(language, N_VOCAB), sampling=WARM, max_tokens=300)
    assert result.tokens == alone.tokens
