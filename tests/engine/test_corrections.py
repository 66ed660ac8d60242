"""Texts that a draft may learn from: whole, marked where guesses were wrong, without effect."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgespec.engine.drafting import corrections
from edgespec.engine.drafting.corrections import Corrections
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.files.training_texts import Correction, TrainingText, TrainingTexts, digest
from edgespec.session.session import LoadedModels, Session
from engine_cases import GREEDY, N_VOCAB, PROMPT, WARM, counting, finish
from fake_model import FakeModel, random_language
from session_cases import PLAN

RULES = EngineSettings(
    fallback="fixed", draft_max=4, step_aside=False, remember=False, lookup=False, no_overlap=True
)
"""Rules by which no clock decides what is guessed."""


def noted(target: FakeModel, draft: FakeModel, max_tokens: int = 20) -> TrainingText:
    kept: list[TrainingText] = []
    with Engine(target, draft, RULES, observer=partial(Corrections, kept.append)) as engine:
        finish(engine.generate(PROMPT, GREEDY, max_tokens))
    (text,) = kept
    return text


def test_a_text_is_noted_whole() -> None:
    text = noted(counting(), counting(), max_tokens=5)
    assert (list(text.tokens), text.n_prompt) == ([*PROMPT, 0, 1, 2, 3, 4], len(PROMPT))


def test_right_guesses_need_no_correction() -> None:
    with Engine(counting(), counting(), RULES) as engine:
        n_rounds = finish(engine.generate(PROMPT, GREEDY, 20)).speculation.rounds
    assert len(noted(counting(), counting()).corrections) <= n_rounds < 20


def test_without_guesses_every_token_is_said_by_the_target() -> None:
    kept: list[TrainingText] = []
    with Engine(counting(), None, RULES, observer=partial(Corrections, kept.append)) as engine:
        finish(engine.generate(PROMPT, GREEDY, 5))
    assert [one.place for one in kept[0].corrections] == [4, 5, 6, 7, 8]


def test_a_correction_is_what_the_target_said_where_no_guess_was_right() -> None:
    text = noted(counting(), FakeModel(random_language(3, N_VOCAB), N_VOCAB))
    assert text.corrections
    for one in text.corrections:
        assert one.tokens[0] == text.tokens[one.place]
        assert len(one.tokens) == corrections.N_SAID
        assert sum(one.probabilities) == pytest.approx(1, abs=0.05)
        assert sorted(one.probabilities, reverse=True) == list(one.probabilities)


@pytest.mark.costly
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_neither_text_nor_guesses_depend_on_it(sampling: object) -> None:
    results = []
    for observer in (None, partial(Corrections, lambda text: None)):
        draft = FakeModel(random_language(3, N_VOCAB), N_VOCAB)
        with Engine(counting(), draft, RULES, clock=lambda: 0.0, observer=observer) as engine:
            results.append(finish(engine.generate(PROMPT, sampling, 20)))  # type: ignore[arg-type]
    assert results[0] == results[1]


def test_of_a_long_text_the_end_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "MAX_TOKENS", 6)
    text = noted(counting(), FakeModel(random_language(3, N_VOCAB), N_VOCAB), max_tokens=10)
    assert (list(text.tokens), text.n_prompt) == ([4, 5, 6, 7, 8, 9], 1)
    assert all(one.tokens[0] == text.tokens[one.place] for one in text.corrections)


def test_a_text_that_cannot_be_kept_is_told_in_a_note() -> None:
    def fail(text: TrainingText) -> None:
        raise OSError(28, "No space left on device")

    with Engine(counting(), counting(), RULES, observer=partial(Corrections, fail)) as engine:
        result = finish(engine.generate(PROMPT, GREEDY, 3))
    assert "not kept to learn from: No space left" in result.notes[-1]


def test_a_session_keeps_texts_by_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "edgespec" / "learnt"
    for rules in (RULES, RULES.but(learn=True)):
        assert not folder.exists()
        target, draft = counting(), counting()
        with Session(
            LoadedModels(target, draft, PLAN, {"total": 0.0}, Path("/t")), rules
        ) as session:
            session.generate(PROMPT, max_tokens=4)
    kept = TrainingTexts(folder)
    (pair,) = kept.pairs(draft.info)
    assert (pair.target_path, pair.target_digest) == ("/t", digest(target.info))
    (text,) = kept.texts(draft.info, pair.target_digest)
    assert (list(text.tokens), text.n_prompt) == ([*PROMPT, 0, 1, 2, 3], len(PROMPT))


def test_rules_that_change_the_text_teach_nothing() -> None:
    with pytest.raises(UsageError, match="leave out learn"):
        EngineSettings(learn=True, acceptance="typical")


def test_what_is_learnt_of_costs_does_not_depend_on_it() -> None:
    assert EngineSettings(learn=True).unusual == EngineSettings().unusual


def test_its_memory_is_planned_for_every_text() -> None:
    one, four = corrections.bytes_needed(1000, 1), corrections.bytes_needed(1000, 4)
    assert four - one == 3 * corrections.TEXT_BYTES
    text = TrainingText(
        [10**6] * corrections.MAX_TOKENS,
        1,
        [Correction(9, (10**6,) * 8, tuple(np.full(8, 0.125)))] * corrections.MAX_CORRECTIONS,
    )
    from edgespec.files.training_texts import _packed

    assert 4 * len(_packed(text)) < corrections.TEXT_BYTES
