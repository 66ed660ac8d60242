"""Answers under a grammar from models whose prompt opens reasoning.

There is reasoning first if the answer's token limit has room for it. Knows no grammar library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgespec.chat.prompts import ChatPrompt
from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd
from edgespec.ports.text_request import Constraint
from edgespec.values import ModelInfo

MIN_ANSWER_TOKENS = 256
"""Tokens that are kept for the answer; a fourth of the limit if that is more."""
MIN_REASONING_TOKENS = 64
"""Least tokens of reasoning that are worth their time."""

Wrap = Callable[[Constraint], Constraint]
"""Returns a constraint that lets the model reason before the given one holds."""


class ReadsVocabulary(Protocol):
    """Protocol of the part of a session that finds the end of reasoning."""

    @property
    def target(self) -> ModelInfo: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    def piece(self, token: int) -> bytes: ...


class ReasonedAnswers:
    """Constraints of one model that begin behind its reasoning."""

    def __init__(self, session: ReadsVocabulary) -> None:
        self._session = session
        self._ends: dict[tuple[str, tuple[int, ...]], ReasoningEnd] = {}

    def wrap(self, prompt: ChatPrompt, most_tokens: int) -> Wrap | None:
        """None if an answer of `most_tokens` to the prompt has no room for reasoning."""
        n_reasoning = most_tokens - max(MIN_ANSWER_TOKENS, most_tokens // 4)
        if prompt.marks is None or n_reasoning < MIN_REASONING_TOKENS:
            return None
        end = self._end(prompt, prompt.marks.end)
        return lambda constraint: AfterReasoning(constraint, end, n_reasoning)

    def _end(self, prompt: ChatPrompt, mark: str) -> ReasoningEnd:
        session, hidden = self._session, dict(prompt.hidden_marks)
        key = (mark, prompt.closing_tokens)
        if key not in self._ends:
            self._ends[key] = ReasoningEnd(
                mark,
                prompt.closing_tokens,
                lambda token: hidden[token].encode() if token in hidden else session.piece(token),
                session.target.n_vocab,
                session.eog_tokens,
            )
        return self._ends[key]
