"""Lessons: what the target said after which tokens, prompts read and not learnt."""

from __future__ import annotations

import math

import pytest

from edgespec.values import TrainingText
from edgespec_runtimes.adapt import lessons
from edgespec_runtimes.adapt.lessons import Lesson, lessons_of


def text_of(tokens: list[int], n_prompt: int, other: int = 3) -> TrainingText:
    """An answer whose tokens had three quarters, and `other` a quarter of the probability."""
    answer = tokens[n_prompt:]
    said = [[(token, math.log(0.6)), (other, math.log(0.2))] for token in answer]
    return TrainingText(tokens, n_prompt, said)


def only(text: TrainingText, n_vocab: int = 100) -> Lesson:
    (lesson,) = lessons_of(text, n_vocab)
    return lesson


def test_only_the_answer_is_taught() -> None:
    lesson = only(text_of([5, 6, 7, 8, 9], 3))
    assert lesson.tokens.tolist() == [5, 6, 7, 8]
    assert (lesson.places.tolist(), lesson.said.tolist()) == ([2, 3], [[8, 3], [9, 3]])
    assert lesson.shares[1] == pytest.approx([0.75, 0.25])


def test_long_texts_are_cut_into_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "WINDOW", 4)
    taught = [
        (int(lesson.tokens[place]), int(said[0]))
        for lesson in lessons_of(text_of(list(range(1, 12)), 6), 100)
        for place, said in zip(lesson.places, lesson.said, strict=True)
    ]
    assert taught == [(6, 7), (7, 8), (8, 9), (9, 10), (10, 11)]


def test_tokens_that_the_draft_has_not_are_not_taught() -> None:
    assert list(lessons_of(text_of([5, 100], 1), 100)) == []
    assert only(text_of([5, 6], 1, other=100)).shares[0].tolist() == [1, 0]
