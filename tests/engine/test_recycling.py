"""Guesses from the target's own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from source_cases import ask, text_of, tokens_of

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources import recycling
from edgespec.engine.sources.recycling import RecyclingSource
from edgespec.pool import line
from edgespec.rules.sampling import SamplingParams
from engine_cases import GREEDY, N_VOCAB, WARM, assert_nothing_provisional, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, random_language


def row(*best: int) -> np.ndarray:
    """Logits that rank these tokens first."""
    logits = np.zeros(N_VOCAB, np.float32)
    for rank, token in enumerate(best):
        logits[token] = 5.0 - rank
    return logits


def observed(*best: int) -> tuple[RecyclingSource, Any]:
    """A source that saw what the target said after token 3, before which stood 7."""
    source, text = RecyclingSource(frozenset([11])), text_of([7], 3)
    source.begin(text)
    source.learn(line(0, [3]), text, [0], row(*best)[None])
    return source, text


def test_the_target_s_best_successors_are_guessed_best_first() -> None:
    source, text = observed(5, 4, 9, 1)
    pool = line(0, [3, 9])
    assert [tokens_of(said) for said in ask(source, pool, [0, 1], text)] == [[5, 4, 9, 1], None]


def test_the_same_two_tokens_say_more_than_the_last_one() -> None:
    source, text = observed(5, 4, 9, 1)
    pool = line(0, [8, 7, 3])
    other = pool.add(0, 3, 0.9)
    source.learn(pool, text, [2], row(6, 5, 4, 2)[None])
    source.learn(pool, text, [other], row(2, 1, 0, 4)[None])
    unseen_pair = pool.add(other, 3, 0.9)
    found = ask(source, pool, [2, other, unseen_pair], text)
    assert [tokens_of(said) for said in found] == [[6, 5, 4, 2], [2, 1, 0, 4], [2, 1, 0, 4]]


def test_nothing_is_guessed_after_the_end_of_a_text() -> None:
    source, text = observed(11, 5)
    assert source.open(line(0, [3, 11]), text) == [0]


def test_a_table_keeps_the_latest_and_no_more_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recycling, "N_KEYS", 6)
    source, text = observed(5, 4, 9, 1)
    for token in (4, 5, 6):
        source.learn(line(0, [token]), text, [0], row(2)[None])
    assert [said is not None for said in ask(source, line(0, [3, 4, 6]), [0, 1, 2], text)] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_target_s_words_save_passes_and_change_no_token(sampling: SamplingParams) -> None:
    target = FakeModel(random_language(4, N_VOCAB, order=1), N_VOCAB)
    results = []
    for lookup in (False, True):
        with Engine(target, settings=EngineSettings(lookup=lookup, step_aside=False)) as engine:
            results.append(finish(engine.generate([1, 2, 3], sampling, 80)))
        assert_nothing_provisional(target)
    assert results[0].tokens == results[1].tokens
    assert results[1].speculation.tokens_per_pass > 1.5
