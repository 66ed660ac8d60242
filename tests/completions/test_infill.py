"""Prompts for the text between two others, with the tokens that the vocabulary has for it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import CompletionRequest
from edgespec.completions.service import Completions
from edgespec.server.other_servers import llama_dialect
from edgespec.values import GenerationResult
from sentences import refuses

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


@pytest.mark.parametrize(
    ("marks", "mark"), [(QWEN, 4), (STARCODER | {"<file_sep>": 5}, 5), (STARCODER, ord("\n"))]
)
def test_other_files_come_first_each_behind_the_vocabularys_mark(
    marks: dict[str, int], mark: int
) -> None:
    tokens = completions(marks).filling.prompt("", "", [{"filename": "f", "text": "t"}])
    assert tokens == [BOS, mark, *map(ord, "f\nt\n"), mark, *map(ord, "file\n"), 1, 2, 3]


@pytest.mark.parametrize("file", [{}, {"filename": "f"}, {"filename": 1, "text": "t"}, {"text": 2}])
def test_a_file_without_a_text_is_refused(file: dict[str, Any]) -> None:
    with refuses(RequestError):
        completions(QWEN).filling.prompt("", "", [file])


VIM = {
    "input_prefix": "def add(a, b):\n",
    "input_suffix": "\nprint(add(1, 2))\n",
    "input_extra": [{"text": "x = 1\n", "time": 3, "filename": "x.py"}],
    "prompt": "    return ",
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached"],
}
"""A request of llama.vim, and of llama.vscode."""


@pytest.mark.parametrize("others", [{}, {"n_predict": 0, "samplers": [], "response_fields": [""]}])
def test_what_llama_vim_asks_is_taken(others: dict[str, Any]) -> None:
    assert llama_dialect(completions(QWEN), VIM | others, fills=True)


@pytest.mark.parametrize(
    ("n_indent", "kept"), [(0, "a\n    b\n\tc\nd"), (1, "a\n    b\n\tc"), (4, "a\n    b")]
)
def test_a_text_ends_in_front_of_a_line_that_is_indented_less(n_indent: int, kept: str) -> None:
    result = GenerationResult("a\n    b\n\tc\nd", (), (), "stop")
    done: Any = SimpleNamespace(
        result=result, source=SimpleNamespace(n_prompt_tokens=0), piece_of=lambda token: b""
    )
    reply = llama_dialect(completions(QWEN), VIM | {"n_indent": n_indent}, fills=True)
    assert reply.choice(done, ())["content"] == kept


def test_a_vocabulary_without_marks_is_refused_by_field() -> None:
    with refuses(RequestError) as caught:
        completions({}).text(CompletionRequest.parse({"prompt": "a", "suffix": "b"}))
    assert caught.value.param == "suffix"
