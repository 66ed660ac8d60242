"""Generations with grammars share memory for a few of them: the others wait in line for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgespec.engine.generation import Generation
from edgespec.errors import GrammarError, SessionClosed
from edgespec.grammar.specification import GRAMMARS_AT_ONCE, Grammar
from edgespec.ports.text_request import TextRequest
from edgespec.session.session import Session
from fake_model import FakeModel, random_language
from session_cases import open_session, until

N_VOCAB, N_TEXTS = 24, 4
LANGUAGE = random_language(1, N_VOCAB)


class EvenTokens:
    """Implements `Constraint`; the engine's thread calls `note` for each token."""

    def __init__(self, note: Callable[[], object] = list) -> None:
        self.note = note

    def allowed(self, ahead: Sequence[int] = ()) -> np.ndarray:
        return np.arange(N_VOCAB) % 2 == 0

    def take(self, token: int) -> None:
        assert token % 2 == 0
        self.note()

    def forced(self, most: int) -> list[int]:
        return []


@pytest.fixture
def target() -> FakeModel:
    return FakeModel(LANGUAGE, N_VOCAB, n_texts=N_TEXTS, n_ctx=256)


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target) as session:
        yield session


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as pool:
        yield pool


def with_grammar(session: Session, first: int = 1, n_tokens: int = 9) -> Generation:
    request = TextRequest((first, 2), max_tokens=n_tokens, constraint=EvenTokens())
    return session.submit(request)


def at_work(session: Session) -> list[Generation]:
    """Generations of this thread that have the memory for grammars."""
    going = [with_grammar(session, n, 200) for n in range(GRAMMARS_AT_ONCE)]
    for generation in going:
        next(generation)
    return going


def in_line(session: Session, threads: ThreadPoolExecutor, first: int = 1) -> Future[Any]:
    """One more, which waits."""
    n_waiting = session.n_waiting
    waiting = threads.submit(list, with_grammar(session, first))
    until(lambda: session.n_waiting == n_waiting + 1)
    return waiting


def test_one_without_a_grammar_passes_those_that_wait(
    session: Session, threads: ThreadPoolExecutor
) -> None:
    first, second = at_work(session)
    waiting = in_line(session, threads)
    assert len(session.generate([3, 2], max_tokens=9).tokens) == 9
    assert not waiting.done()
    first.close()
    assert {event.token % 2 for event in waiting.result(timeout=60)} == {0}
    second.close()


def test_those_with_grammars_begin_in_their_order(
    session: Session, threads: ThreadPoolExecutor
) -> None:
    going = at_work(session)
    order: list[int] = []
    waiting = []
    for n in range(6):
        constraint = EvenTokens(lambda n=n: order.append(n))
        request = TextRequest((n, 2), max_tokens=2, constraint=constraint)
        waiting.append(threads.submit(list, session.submit(request)))
        until(lambda expected=n + 1: session.n_waiting == expected)
    going[0].close()
    assert all(each.result(timeout=60) for each in waiting)
    assert order == [n for n in range(6) for _ in range(2)]
    going[1].close()


def test_cancelled_while_it_waits_it_ends_and_the_next_one_begins(
    session: Session, threads: ThreadPoolExecutor
) -> None:
    going = at_work(session)
    cancelled = with_grammar(session)
    first = threads.submit(list, cancelled)
    until(lambda: session.n_waiting == 1)
    second = in_line(session, threads, 5)
    cancelled.cancel()
    assert first.result(timeout=60) == []
    assert cancelled.result.finish_reason == "cancelled"
    assert not second.done()
    going[0].close()
    assert len(second.result(timeout=60)) == 9
    going[1].close()
    assert session.n_waiting == 0


def test_a_session_that_closes_ends_those_that_wait(
    session: Session, threads: ThreadPoolExecutor
) -> None:
    going = at_work(session)
    waiting = in_line(session, threads)
    session.close()
    with pytest.raises(SessionClosed):
        waiting.result(timeout=60)
    assert len(going) == GRAMMARS_AT_ONCE


def test_a_thread_that_waits_for_its_own_grammars_has_them_written_to_their_end(
    session: Session,
) -> None:
    going = [with_grammar(session, n) for n in range(GRAMMARS_AT_ONCE)]
    for generation in going:
        next(generation)
    assert len(list(with_grammar(session))) == 9
    assert len(session.generate([3, 2], max_tokens=9).tokens) == 9
    assert [len(list(generation)) for generation in going] == [8, 8]


def test_an_ended_text_holds_no_grammar(session: Session) -> None:
    generation = with_grammar(session)
    list(generation)
    assert generation._text.terms.constraint is None
    assert len(generation.result.tokens) == 9


def test_grammars_that_no_vocabulary_allows_take_memory_once(session: Session) -> None:
    for _ in range(3):
        with pytest.raises(GrammarError):  # there is no end of text
            session.constraint(Grammar("regular expression", "[ab]+"))
    assert [row.what for row in session.plan.rows].count("grammars") == 1
