"""Drafting beside a pass, and stepping aside where drafting does not pay."""

from __future__ import annotations

import threading

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from engine_cases import (
    GREEDY,
    PROMPT,
    Failing,
    assert_nothing_provisional,
    counting,
    finish,
    generate,
    waits_for_steps_of,
)
from engine_cases import AskedEngine as Engine

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
        with pytest.raises(ModelError):
            finish(engine.generate(PROMPT, GREEDY, 30))
        assert_nothing_provisional(target, draft)


# Never slower than no draft
