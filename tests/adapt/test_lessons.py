"""Lessons: what the target said after which tokens, prompts read and not learnt."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.files.training_texts import Correction, TrainingText
from edgespec_runtimes.adapt import lessons
from edgespec_runtimes.adapt.lessons import Lesson, lessons_of


def only(text: TrainingText, n_vocab: int = 100) -> Lesson:
    (lesson,) = lessons_of(text, n_vocab)
    return lesson


def test_only_the_answer_is_taught() -> None:
    lesson = only(TrainingText([5, 6, 7, 8, 9], 3))
    assert lesson.tokens.tolist() == [5, 6, 7, 8]
    assert (lesson.places.tolist(), lesson.said[:, 0].tolist()) == ([2, 3], [8, 9])
    assert np.all(lesson.shares == 1)


def test_where_guesses_were_wrong_the_distribution_is_taught() -> None:
    lesson = only(TrainingText([5, 6, 7, 8], 2, [Correction(3, [8, 1], [0.6, 0.2])]))
    assert lesson.said.tolist() == [[7, 0], [8, 1]]
    assert lesson.shares[1] == pytest.approx([0.75, 0.25])
    assert lesson.shares[0].tolist() == [1, 0]


def test_long_texts_are_cut_into_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "WINDOW", 4)
    text = TrainingText(list(range(1, 12)), 6, [Correction(9, [10], [1.0])])
    taught = [
        (int(lesson.tokens[place]), int(said[0]))
        for lesson in lessons_of(text, 100)
        for place, said in zip(lesson.places, lesson.said, strict=True)
    ]
    assert taught == [(6, 7), (7, 8), (8, 9), (9, 10), (10, 11)]


def test_tokens_that_the_draft_has_not_are_not_taught() -> None:
    assert list(lessons_of(TrainingText([5, 100], 1), 100)) == []
    lesson = only(TrainingText([5, 6], 1, [Correction(1, [6, 100], [0.5, 0.5])]))
    assert lesson.said[0, 0] == 6 and lesson.shares[0].tolist() == [1, 0]
