"""Prompts for the text between two others, with the tokens that the vocabulary has for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import CompletionRequest
from edgespec.completions.service import Completions

QWEN = {"<|fim_prefix|>": 1, "<|fim_suffix|>": 2, "<|fim_middle|>": 3, "<|file_sep|>": 4}
STARCODER = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3}
BOS = 9


class SpelledMarks:
    """A session that encodes marks to their tokens and other characters to their numbers."""

    def __init__(self, marks: dict[str, int]) -> None:
        self._marks = marks

    def encode(self, text: str) -> list[int]:
        marks = "|".join(map(re.escape, self._marks))
        pieces = re.findall(f"{marks}|.", text, re.DOTALL) if marks else [*text]
        return [BOS, *(self._marks.get(piece, ord(piece[0])) for piece in pieces)]


def completions(marks: dict[str, int]) -> Any:
    return Completions(SpelledMarks(marks), "m")  # type: ignore[arg-type]


@pytest.mark.parametrize("marks", [QWEN, STARCODER])
def test_the_middle_follows_prefix_and_suffix(marks: dict[str, int]) -> None:
    assert completions(marks).filling.prompt("a", "b") == [BOS, 1, ord("a"), 2, ord("b"), 3]
    assert completions(marks).filling.prompt("a", "b", begun="c")[-2:] == [3, ord("c")]


def test_other_files_come_first() -> None:
    tokens = completions(QWEN).filling.prompt("", "", [{"filename": "f", "text": "t"}])
    assert tokens == [BOS, 4, *map(ord, "f\nt\n"), 1, 2, 3]


@pytest.mark.parametrize("file", [{}, {"filename": "f"}, {"filename": 1, "text": "t"}, {"text": 2}])
def test_a_file_without_a_text_is_refused(file: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="input_extra"):
        completions(QWEN).filling.prompt("", "", [file])


def test_a_vocabulary_without_marks_is_refused_by_field() -> None:
    with pytest.raises(RequestError, match="filling") as caught:
        completions({}).text(CompletionRequest.parse({"prompt": "a", "suffix": "b"}))
    assert caught.value.param == "suffix"
