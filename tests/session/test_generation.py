"""A generation of a session: what it yields, how it ends or is cancelled, and what it leaves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.errors import ModelError
from edgespec.session.session import Session
from edgespec.values import PagingStats
from engine_cases import PROMPT, Failing, assert_nothing_provisional, counting
from fake_model import FakeModel
from session_cases import holds_passes, open_session


def test_it_yields_tokens_and_has_a_result_at_its_end(session: Session) -> None:
    generation = session.stream(PROMPT, max_tokens=5)
    assert [event.token for event in generation] == [0, 1, 2, 3, 4]
    assert generation.result.tokens == (0, 1, 2, 3, 4)
    assert generation.result.finish_reason == "length"


def test_closed_early_it_has_what_there_was(session: Session) -> None:
    with session.stream(PROMPT) as generation:
        next(generation)
    assert generation.result.finish_reason == "cancelled"
    assert generation.result.tokens[0] == 0
    assert list(generation) == []


def test_closing_leaves_nothing_provisional(target: FakeModel) -> None:
    draft = counting()
    with open_session(target, draft) as session:
        generation = session.stream(PROMPT)
        next(generation)
        generation.close()
        generation.close()
        assert_nothing_provisional(target, draft)


def test_an_error_ends_it_and_is_what_its_result_raises(
    session: Session, target: FakeModel
) -> None:
    target.hook = Failing(2, ModelError("the disk is gone"))
    generation = session.stream(PROMPT)
    with pytest.raises(ModelError):
        list(generation)
    with pytest.raises(ModelError):
        _ = generation.result
    assert list(generation) == []
    assert session.generate(PROMPT, max_tokens=1).tokens == (0,)


def test_after_ctrl_c_the_text_so_far_is_there(target: FakeModel) -> None:
    with open_session(target) as session:
        generation = session.stream(PROMPT)
        assert [next(generation).token, next(generation).token] == [0, 1]
        target.hook = Failing(1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            next(generation)
        assert generation.result.tokens == (0, 1)
        assert generation.result.finish_reason == "cancelled"


class Paging(FakeModel):
    """Reads ten bytes a pass and has read a hundred before."""

    def paging(self) -> PagingStats:
        n_passes = len(self.evaluations) + len(self.prefilled)
        return PagingStats(segments=3, bytes_read=100 + 10 * n_passes, passes=7 + n_passes)


def test_its_paging_is_its_own_and_the_sessions_is_the_sum() -> None:
    fake = counting()
    with open_session(Paging(fake.language, fake.info.n_vocab)) as session:
        first = session.generate(PROMPT, max_tokens=4)
        second = session.generate(PROMPT, max_tokens=2)
        assert first.paging == PagingStats(segments=3, bytes_read=50, passes=5)
        assert second.paging == PagingStats(segments=3, bytes_read=20, passes=2)
        assert session.paging == PagingStats(segments=3, bytes_read=170, passes=14)


def test_the_session_cancels_what_has_not_begun(session: Session, target: FakeModel) -> None:
    generation = session.stream(PROMPT)
    session.cancel()
    assert list(generation) == []
    assert generation.result.finish_reason == "cancelled"
    assert target.prefilled == []


def test_cancelling_while_the_prompt_is_read_counts(
    session: Session, target: FakeModel, elsewhere: ThreadPoolExecutor
) -> None:
    begun, _ = holds_passes(target)
    generation = session.stream(PROMPT)
    tokens = elsewhere.submit(list, generation)
    begun.wait()
    generation.cancel()
    assert tokens.result() == []
    assert generation.result.finish_reason == "cancelled"


def test_cancelling_one_leaves_the_others(session: Session) -> None:
    one, other = session.stream(PROMPT, max_tokens=2), session.stream(PROMPT, max_tokens=2)
    one.cancel()
    assert list(one) == []
    assert [event.token for event in other] == [0, 1]
