"""A text that spells the BOS token which the model's rules add."""

from __future__ import annotations

import pytest

from fake_model import FakeModel, FakeVocabulary, random_language
from session_cases import open_session


class BeginsWithBos(FakeVocabulary):
    """Token 0 is BOS, spelled `^`."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        tokens = [0 if letter == "^" else 1 for letter in text]
        return [0, *tokens] if add_special else tokens


@pytest.mark.parametrize(("text", "is_told"), [("^ab", True), ("ab", False)])
def test_two_bos_tokens_get_a_note(text: str, is_told: bool) -> None:
    target = FakeModel(random_language(1, 8), 8)
    target.vocabulary = BeginsWithBos(8)
    with open_session(target) as session:
        notes = session.generate(text, max_tokens=1).notes
    assert any("it begins with two" in note for note in notes) == is_told
