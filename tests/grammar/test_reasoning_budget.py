"""Reasoning of a limited length, over a vocabulary whose tokens are characters and marks."""

from __future__ import annotations

from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd

PIECES = ["a", "b", " ", "\n", "<think>", "</think>", "<th", "ink>", "</thi", "nk>", ""]
EOG = len(PIECES) - 1
CLOSING = (3, 5, 3, 3)


def tokens(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def budget(n_tokens: int, inside: bool = True) -> AfterReasoning:
    begin = None if inside else "<think>"
    piece = [text.encode() for text in PIECES].__getitem__
    end = ReasoningEnd("</think>", CLOSING, piece, len(PIECES), {EOG})
    return AfterReasoning(end, n_tokens, begin=begin)


def after(its: AfterReasoning, *pieces: str) -> AfterReasoning:
    for token in tokens(*pieces):
        its.take(token)
    return its


def test_reasoning_is_free_up_to_its_budget_then_closed() -> None:
    its = after(budget(3), "a", "b")
    assert its.allowed().all() and its.forced(9) == []
    assert after(its, "a").forced(9) == [*CLOSING]
    assert [*its.allowed().nonzero()[0]] == [CLOSING[0]]
    for place, token in enumerate(CLOSING):
        assert its.forced(2) == [*CLOSING[place : place + 2]]
        its.take(token)
    assert its.allowed().all() and its.forced(9) == []


def test_a_text_that_opens_reasoning_itself_has_the_budget_behind_its_mark() -> None:
    for begin in (("<think>",), ("\n", "<th", "ink>")):
        its = after(budget(2, inside=False), *begin, "a")
        assert its.forced(9) == []
        assert after(its, "b").forced(9) == [*CLOSING]


def test_tokens_ahead_are_judged_without_being_taken() -> None:
    its = after(budget(2), "a")
    assert [*its.allowed(tokens("b")).nonzero()[0]] == [CLOSING[0]]
    assert [*its.allowed([0, CLOSING[0]]).nonzero()[0]] == [CLOSING[1]]
    assert not its.allowed(tokens("b", "a")).any()
    assert its.allowed([0, *CLOSING]).all()
    assert its.forced(9) == []
