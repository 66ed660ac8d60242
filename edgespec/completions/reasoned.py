"""Answers under a grammar from models whose prompt opens reasoning.

There is reasoning first if the answer's token limit has room for it. Knows no grammar library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.chat.prompts import ChatPrompt
from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd
from edgespec.ports.text_request import Constraint

if TYPE_CHECKING:
    from edgespec.completions.service import Generates

MIN_ANSWER_TOKENS = 256
"""Tokens that are kept for the answer; a fourth of the limit if that is more."""
MIN_REASONING_TOKENS = 64
"""Least tokens of reasoning that are worth their time."""

Wrap = Callable[[Constraint | None], Constraint | None]
"""Returns a constraint that lets the model reason before the given one, if there is one, holds."""


class ReasonedAnswers:
    """Constraints of one model that begin behind its reasoning."""

    def __init__(self, session: Generates) -> None:
        self._session = session
        self._ends: dict[tuple[str, tuple[int, ...]], ReasoningEnd] = {}

    def wrap(self, prompt: ChatPrompt, most_tokens: int, budget: int | None) -> Wrap | None:
        """For an answer of `most_tokens` under a grammar; None if it has no room for reasoning.

        `budget` limits the tokens of reasoning further.
        """
        n_reasoning = most_tokens - max(MIN_ANSWER_TOKENS, most_tokens // 4)
        if prompt.marks is None or n_reasoning < MIN_REASONING_TOKENS:
            return None
        end = self._end(prompt, prompt.marks.end, prompt.closing_tokens)
        _ = end.vocabulary  # here, since the thread that computes serves others, too
        n_free = n_reasoning if budget is None else min(budget, n_reasoning)

        return lambda constraint: constraint and AfterReasoning(end, n_free, constraint)

    def limit(self, prompt: ChatPrompt, budget: int) -> Wrap | None:
        """For a free answer with `budget` tokens of reasoning; None if there are no marks of it."""
        marks = prompt.marks
        if marks is None or not prompt.end_tokens or prompt.continued is not None:
            return None
        begin = None if prompt.closing else marks.begin
        end = self._end(prompt, marks.end, prompt.end_tokens)
        return lambda _: AfterReasoning(end, budget, begin=begin)

    def _end(self, prompt: ChatPrompt, mark: str, closing: tuple[int, ...]) -> ReasoningEnd:
        session, hidden = self._session, dict(prompt.hidden_marks)

        def shown(token: int) -> bytes:
            """The bytes of a token, also of a mark that is a control token."""
            return hidden[token].encode() if token in hidden else session.piece(token)

        new = ReasoningEnd(mark, closing, shown, session.target.n_vocab, session.eog_tokens)
        return self._ends.setdefault((mark, closing), new)
