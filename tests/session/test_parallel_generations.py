"""Several generations of one session: their places, their ends, and what closing leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.rules.sampling import SamplingParams
from edgespec.session.session import Session
from fake_model import FakeModel, blend, random_language
from session_cases import open_session, until

N_VOCAB = 24
LANGUAGE = random_language(1, N_VOCAB)


def new_target(n_texts: int) -> FakeModel:
    return FakeModel(LANGUAGE, N_VOCAB, n_texts=n_texts, n_ctx=256)


def new_draft(n_texts: int) -> FakeModel:
    language = blend(LANGUAGE, random_language(2, N_VOCAB), 0.4)
    return FakeModel(language, N_VOCAB, n_texts=n_texts, n_ctx=256)


@pytest.fixture
def target() -> FakeModel:
    return new_target(2)


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target, new_draft(2)) as session:
        yield session


def test_a_thread_may_have_more_generations_than_there_are_places(session: Session) -> None:
    first, second = session.stream([1, 2], max_tokens=9), session.stream([2, 2], max_tokens=9)
    next(first), next(second)
    assert len(list(session.stream([3, 2], max_tokens=9))) == 9
    assert len(list(first)) == len(list(second)) == 8


def test_a_text_is_not_written_ahead_of_its_reader(session: Session, target: FakeModel) -> None:
    first = session.stream([1, 2], max_tokens=200)
    next(first)
    n_passes = target.n_passes
    time.sleep(0.05)
    assert target.n_passes == n_passes
    first.close()


def test_a_reader_that_stops_holds_up_no_other(session: Session) -> None:
    first = session.stream([1, 2], max_tokens=200)
    next(first)
    assert len(session.generate([3, 2], max_tokens=9).tokens) == 9
    first.close()


def test_a_generation_that_nobody_refers_to_leaves_its_place(session: Session) -> None:
    for n in range(5):
        next(session.stream([n, 2], max_tokens=99))
    assert session.n_waiting <= 4
    assert len(list(session.stream([7, 2], max_tokens=9))) == 9


@pytest.mark.slow
def test_clients_that_vanish_at_random_leave_nothing(target: FakeModel) -> None:
    """Eighty requests of ten threads: closed, cancelled, dropped, or read to the end."""
    draft = new_draft(2)
    with open_session(target, draft) as session:
        expected = {n: session.generate([n, 2], max_tokens=12).tokens for n in range(6)}
        dice = random.Random(5)
        fates = [(n % 6, dice.choice(["end", "close", "cancel", "drop"])) for n in range(80)]

        def client(n: int, fate: str) -> bool:
            generation = session.stream([n, 2], SamplingParams(), 12)
            if fate == "end":
                for _ in generation:
                    pass
                return generation.result.tokens == expected[n]
            next(generation, None)
            if fate == "close":
                generation.close()
            elif fate == "cancel":
                generation.cancel()
                for _ in generation:
                    pass
            return True

        with ThreadPoolExecutor(10) as pool:
            assert all(pool.map(client, *zip(*fates, strict=True)))
        assert len(session.generate([1, 2], max_tokens=12).tokens) == 12
        until(lambda: session.n_waiting == 0)
    assert target.n_provisional == draft.n_provisional == 0
