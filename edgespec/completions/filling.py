"""Prompts for the text between two others, for models whose vocabulary has tokens for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from edgespec.completions.protocols.request_parts import RequestError, reading, string

_FILL_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
"""Spellings of the tokens for filling in the middle: Qwen's and CodeGemma's, StarCoder's,
Granite's, DeepSeek's, GLM's."""
_FILE_MARKS = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
"""Spellings of the token in front of each file of several: Qwen's, StarCoder's, CodeGemma's."""


class FillingIn:
    """Builds prompts of one model."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        """`encode` gives the tokens of a text, behind a BOS token if the model uses one."""
        self._encode = encode

    def prompt(
        self,
        prefix: str,
        suffix: str,
        extra: Sequence[Mapping[str, Any]] = (),
        begun: str = "",
        param: str = "input_suffix",
    ) -> list[int]:
        """Tokens of a prompt for the text between two others, which may have `begun`, among other
        files. Raises RequestError for a model without tokens for that."""
        if self._marks is None:
            raise RequestError(
                "this model has no tokens for filling in the middle: ask one that has, such as "
                "qwen2.5-coder",
                param,
            )
        tokens = self._encode("")
        mark = next((mark for mark in _FILE_MARKS if len(self.tokens(mark)) == 1), "\n")
        with reading("input_extra", "input_extra"):
            for file in extra:
                name, text = string(file.get("filename", "file")), string(file["text"])
                tokens += self.tokens(f"{mark}{name}\n{text}\n")
        if extra:
            tokens += self.tokens(f"{mark}file\n")
        first, second, third = self._marks
        tokens += [first, *self.tokens(prefix), second, *self.tokens(suffix), third]
        return tokens + self.tokens(begun)

    def mixed(self, parts: Sequence[str | int]) -> list[int]:
        """Tokens of a prompt that is given as texts and tokens in turn."""
        tokens: list[int] = []
        for place, part in enumerate(parts):
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.tokens(part) if place else self._encode(part)
        return tokens

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text within a prompt."""
        return self._encode(text)[len(self._encode("")) :]

    @cached_property
    def _marks(self) -> list[int] | None:
        """The tokens in front of a prefix, a suffix and what is between them; None if the
        vocabulary has none."""
        found = ([t for mark in spelled for t in self.tokens(mark)] for spelled in _FILL_MARKS)
        return next((marks for marks in found if len(marks) == len(_FILL_MARKS[0])), None)
