"""Constraints of answers behind reasoning, which has a limit. Knows no grammar library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.chat.prompts import ChatPrompt
from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd
from edgespec.ports.text_request import Constraint

if TYPE_CHECKING:
    from edgespec.completions.service import Generates

MIN_ANSWER_TOKENS = 256
"""Tokens that are kept for an answer under a grammar; a fourth of the limit if that is more."""
MIN_REASONING_TOKENS = 64
"""Least tokens of reasoning that are worth their time before such an answer."""

Wrap = Callable[[Constraint | None], Constraint | None]
"""Returns a constraint that lets the model reason before the given one, if there is one, holds."""


class ReasonedAnswers:
    """Constraints of one model that begin behind its reasoning."""

    def __init__(self, session: Generates) -> None:
        self._session = session
        self._ends: dict[tuple[str, tuple[int, ...]], ReasoningEnd] = {}

    def wrap(self, prompt: ChatPrompt, n_free: int, has_grammar: bool) -> Wrap | None:
        """For an answer with `n_free` tokens of reasoning; None if there are no marks of it."""
        marks, closing = prompt.marks, prompt.ending_tokens
        if marks is None or not closing:
            return None
        session, hidden = self._session, dict(prompt.hidden_marks)

        def shown(token: int) -> bytes:
            """The bytes of a token, also of a mark that is a control token."""
            return hidden[token].encode() if token in hidden else session.piece(token)

        new = ReasoningEnd(marks.end, closing, shown, session.target.n_vocab, session.eog_tokens)
        end = self._ends.setdefault((marks.end, closing), new)
        if has_grammar:  # here, since the thread that computes serves others, too
            _ = end.vocabulary
        begin = None if prompt.opened else marks.begin
        return lambda constraint: AfterReasoning(end, n_free, constraint, begin)
