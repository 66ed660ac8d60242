"""Order of generations: one runs, the others wait for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.errors import UsageError
from edgespec.session.session import Session
from engine_cases import PROMPT
from fake_model import FakeModel
from session_cases import holds_passes, open_session, until


def test_a_second_thread_waits_for_the_first_generation(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    first, second = session.stream(PROMPT, max_tokens=3), session.stream(PROMPT, max_tokens=1)
    next(first)
    waiting = elsewhere.submit(list, second)
    assert [event.token for event in first] == [1, 2]
    assert [event.token for event in waiting.result()] == [0]


def test_those_who_wait_come_in_the_order_in_which_they_asked(target: FakeModel) -> None:
    order: list[int] = []
    with open_session(target) as session, ThreadPoolExecutor(3) as pool:
        first = session.stream(PROMPT)
        next(first)
        waiting = []
        for number in range(3):
            waiting.append(pool.submit(_run, session, number, order))
            until(lambda expected=number + 1: session.n_waiting == expected)
        first.close()
        for done in waiting:
            done.result()
    assert order == [0, 1, 2]


def _run(session: Session, number: int, order: list[int]) -> None:
    for _ in session.stream(PROMPT, max_tokens=2):
        order[:] = [*dict.fromkeys([*order, number])]


def test_cancelled_in_line_it_ends_without_a_token(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    with session.stream(PROMPT) as first:
        next(first)
        second = session.stream(PROMPT)
        waiting = elsewhere.submit(list, second)
        until(lambda: session.n_waiting == 1)
        second.cancel()
        assert waiting.result() == []
        assert second.result.finish_reason == "cancelled"
        assert next(first).token == 1


def test_a_thread_that_waits_in_line_has_its_other_text_written_to_its_end(
    session: Session, target: FakeModel
) -> None:
    """It would wait for itself otherwise."""
    first, second = session.stream(PROMPT, max_tokens=4), session.stream(PROMPT, max_tokens=1)
    next(first)
    assert [event.token for event in second] == [0]
    n_passes = target.n_passes
    assert [event.token for event in first] == [1, 2, 3]
    assert target.n_passes == n_passes


def test_another_thread_may_go_on_with_a_generation(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    generation = session.stream(PROMPT, max_tokens=3)
    next(generation)
    assert elsewhere.submit(next, generation).result().token == 1
    assert [event.token for event in generation] == [2]


def test_the_next_one_waits_for_the_thread_that_took_over(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    first, second = session.stream(PROMPT, max_tokens=3), session.stream(PROMPT, max_tokens=1)
    next(first)
    elsewhere.submit(next, first).result()
    finishing = elsewhere.submit(list, first)
    assert [event.token for event in second] == [0]
    assert len(finishing.result()) == 1


def test_two_threads_may_not_ask_one_generation_at_once(
    session: Session, target: FakeModel, elsewhere: ThreadPoolExecutor
) -> None:
    begun, may_go_on = holds_passes(target)
    generation = session.stream(PROMPT, max_tokens=2)
    tokens = elsewhere.submit(list, generation)
    begun.wait()
    with pytest.raises(UsageError):
        next(generation)
    may_go_on.set()
    assert len(tokens.result()) == 2


def test_a_dropped_generation_lets_the_next_one_in(session: Session) -> None:
    next(session.stream(PROMPT))
    assert session.generate(PROMPT, max_tokens=2).tokens == (0, 1)


def test_a_dropped_generation_lets_one_in_that_waits(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    first = session.stream(PROMPT)
    next(first)
    waiting = elsewhere.submit(session.generate, PROMPT, max_tokens=2)
    until(lambda: session.n_waiting == 1)
    del first
    assert waiting.result().tokens == (0, 1)
