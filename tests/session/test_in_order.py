"""Many prompts: results in their order, and an end that leaves nothing behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from edgespec.errors import SessionClosed, UsageError
from edgespec.session.in_order import PROMPTS_PER_SLOT
from edgespec.session.session import Session
from edgespec.values import PassReport
from engine_cases import PROMPT, counting
from fake_model import FakeModel
from session_cases import holds_passes, open_session, until

PROMPTS = [[1, 2, 3, i] for i in range(10)]


@pytest.fixture(params=[1, 3])
def target(request: pytest.FixtureRequest) -> FakeModel:
    return counting(n_texts=request.param)


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target, counting(n_texts=target.info.n_slots)) as session:
        yield session


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("edgespec-gen")])


def test_results_come_in_the_order_of_the_prompts(session: Session) -> None:
    results = list(session.generate_many(PROMPTS, max_tokens=5))
    assert [list(result.prompt_tokens) for result in results] == PROMPTS
    assert [result.tokens for result in results] == (
        [session.generate(prompt, max_tokens=5).tokens for prompt in PROMPTS]
    )


def test_prompts_are_read_as_results_are_taken(session: Session) -> None:
    taken = iter(range(1000))
    with closing(session.generate_many(([1, i % 9] for i in taken), max_tokens=1)) as results:
        next(results)
        assert next(taken) == PROMPTS_PER_SLOT * session.n_parallel
        next(results)
        assert next(taken) == PROMPTS_PER_SLOT * session.n_parallel + 2


def test_an_error_comes_in_its_place_and_ends_the_rest(session: Session) -> None:
    results = session.generate_many([PROMPT, PROMPT, "", PROMPT], max_tokens=2)
    assert len([next(results), next(results)]) == 2
    with pytest.raises(UsageError, match="empty"):
        next(results)
    assert list(results) == []
    assert session.generate(PROMPT, max_tokens=2).tokens


@pytest.mark.costly
@pytest.mark.parametrize("end", ["close", "forget", "session"])
def test_ended_early_nothing_goes_on(target: FakeModel, end: str) -> None:
    begun, _ = holds_passes(target)
    with open_session(target) as session:
        results = session.generate_many(PROMPTS)
        ended: list[object] = []
        thread = threading.Thread(target=lambda: ended.extend(results))
        if end != "session":
            target.hook = None
            next(results)
            if end == "close":
                results.close()
            del results, thread
            gc.collect()
        else:
            thread.start()
            assert begun.wait(60)
            session.cancel()
            thread.join(60)
            assert not thread.is_alive()
            assert len(ended) <= 1  # the first of those under way
        target.hook = None
        assert session.generate(PROMPT, max_tokens=2).tokens
        assert session.n_waiting == 0


def test_a_session_that_closes_ends_them(target: FakeModel) -> None:
    begun, _ = holds_passes(target)
    session = open_session(target)
    results = session.generate_many(PROMPTS)
    failures: list[BaseException] = []

    def take() -> None:
        try:
            list(results)
        except SessionClosed as error:
            failures.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    assert begun.wait(60)
    session.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_thread_with_texts_in_all_places_gets_its_results(session: Session) -> None:
    with closing(session.generate_many(PROMPTS, max_tokens=2)) as results:
        next(results)
        with ExitStack() as stack:
            for _ in range(session.n_parallel):
                next(stack.enter_context(session.stream(PROMPT)))
            assert len(next(results).tokens) == 2


def test_a_text_begins_with_the_pass_after_the_one_that_made_room() -> None:
    """Threads take a moment to begin the next text, and passes are long: none is missed."""
    target = counting(n_texts=4, cost=lambda n_rows: PassReport(wall_s=50.0, n_tokens=n_rows))
    with open_session(target) as session:
        session.generate([1, 2], max_tokens=2)
        n_before = target.n_passes
        results = list(session.generate_many([[n, 2] for n in range(4)] * 4, max_tokens=6))
    assert [len(result.tokens) for result in results] == [6] * 16
    assert target.n_passes - n_before <= 4 * 6
