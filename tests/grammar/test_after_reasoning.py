"""A grammar that holds behind reasoning, whatever the tokens of its mark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd

PIECES = [
    b"a",
    b"<",
    b"/t",
    b">",
    b">\n",
    b">{",
    b"</t>",
    b"</t>{",
    b"\n",
    b"{",
    b"}",
    b"",
    b"</t>\n\n",
]
EOG, SPACE = 11, 8
CLOSING = (8, 6, 8)


class Braces:
    """The grammar of `{}` and the end of generation."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        mask = np.zeros(len(PIECES), bool)
        mask[[9, 10, EOG][len(self.taken) + len(ahead)]] = True
        return mask

    def take(self, token: int) -> None:
        assert self.allowed()[token]
        self.taken.append(PIECES[token])

    def forced(self, most: int) -> list[int]:
        return [9, 10][len(self.taken) :][:most]


def started(most: int = 99) -> tuple[AfterReasoning, Braces]:
    grammar = Braces()
    end = ReasoningEnd("</t>", CLOSING, PIECES.__getitem__, len(PIECES), {EOG})
    return AfterReasoning(end, most, grammar), grammar


def take(state: AfterReasoning, *tokens: int) -> None:
    for token in tokens:
        assert state.allowed()[token], PIECES[token]
        state.take(token)


def allowed(state: AfterReasoning) -> set[int]:
    return set(np.flatnonzero(state.allowed()).tolist())


def test_reasoning_is_free_but_for_its_end() -> None:
    state, _ = started()
    assert allowed(state) == set(range(len(PIECES))) - {EOG, 7}
    assert state.forced(9) == []


@pytest.mark.parametrize("mark", [(6,), (1, 2, 3), (1, 2, 4), (12,), (0, 1, 1, 2, 3)])
def test_the_grammar_holds_behind_the_mark_however_it_is_split(mark: tuple[int, ...]) -> None:
    state, grammar = started()
    take(state, 0, 9, 10, *mark)
    assert allowed(state) >= {9}
    take(state, 9, 10, EOG)
    assert grammar.taken == [b"{", b"}", b""]


def test_no_token_spans_the_mark_and_the_answer() -> None:
    state, _ = started()
    take(state, 1, 2)
    assert 5 not in allowed(state)
    take(state, 0)
    assert 5 in allowed(state)


def test_reasoning_that_takes_too_long_is_closed() -> None:
    state, grammar = started(most=3)
    take(state, 0, 0, 0)
    assert allowed(state) == {CLOSING[0]}
    assert state.forced(2) == [*CLOSING[:2]]
    take(state, *CLOSING)
    assert allowed(state) == {9}
    assert state.forced(9) == [9, 10]
    assert grammar.taken == []


@pytest.mark.parametrize("text", [(0, 6, SPACE, 9, 10), (1, 2, 4, 9, 10), (0, 0, 0, *CLOSING, 9)])
def test_what_is_allowed_some_tokens_ahead_is_what_is_allowed_there(text: tuple[int, ...]) -> None:
    state, _grammar = started(most=3)
    for n_taken in range(len(text)):
        ahead = [
            set(np.flatnonzero(state.allowed(text[n_taken:end]))) for end in (n_taken, len(text))
        ]
        there, _ = started(most=3)
        take(there, *text)
        assert ahead == [allowed(state), allowed(there)]
        take(state, text[n_taken])
