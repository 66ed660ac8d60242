"""The end of a text, and its finish reason."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.engine.transcript import Transcript
from fake_model import FakeVocabulary


def transcript(*eog: int, stop: Sequence[str] = (), limit: int = 9) -> Transcript:
    """Token 0 is "a", token 1 "b" and so on."""
    return Transcript(FakeVocabulary(8, eog), stop, limit, "length")


def taken(text: Transcript, *tokens: int) -> list[str]:
    return [text.take(token, 0).text for token in tokens]


def test_tokens_become_text_one_by_one() -> None:
    text = transcript()
    assert taken(text, 0, 1) == ["a", "b"]
    assert (text.text, text.tokens, text.finish_reason) == ("ab", [0, 1], None)


def test_an_end_of_generation_token_belongs_to_the_tokens_and_adds_no_text() -> None:
    text = transcript(5)
    assert taken(text, 0, 5) == ["a", ""]
    assert (text.text, text.tokens, text.finish_reason) == ("a", [0, 5], "stop")


@pytest.mark.parametrize("tokens", [(0, 1), (0, 5)], ids=["limit", "end of generation"])
def test_what_was_held_for_a_stop_string_is_text_when_it_ends_otherwise(
    tokens: tuple[int, ...],
) -> None:
    text = transcript(5, stop=["abc"], limit=2)
    taken(text, *tokens)
    assert text.text == ("ab" if 1 in tokens else "a")


def test_room_is_what_is_left_of_the_limit() -> None:
    text = transcript(limit=3)
    taken(text, 0)
    assert text.room == 2


def test_cancelling_shows_what_was_held() -> None:
    text = transcript(stop=["ab"])
    taken(text, 0)
    text.cancel()
    assert (text.text, text.finish_reason) == ("a", "cancelled")


def test_cancelling_changes_no_text_that_has_ended() -> None:
    text = transcript(stop=["b"])
    taken(text, 0, 1)
    text.cancel()
    text.cancel()
    assert (text.text, text.finish_reason) == ("a", "stop")
