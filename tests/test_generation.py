"""A generation of a session: whose turn it is, how it ends, and what it leaves to the next one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sharing import Turn
from edgespec.errors import EdgespecError, ModelError, SessionClosed, UsageError
from edgespec.memory.budget import MemoryPlan
from edgespec.session import LoadedModels, Session
from edgespec.testing.fake_model import FakeModel
from edgespec.values import PagingStats
from engine_cases import PROMPT, Failing, assert_nothing_provisional, counting

LOAD_S = 0.75
PLAN = MemoryPlan(
    budget_bytes=1,
    rows=(),
    segments=(),
    pinned=frozenset(),
    ring_bytes=0,
    paged=False,
    smallest_bytes=1,
)


def open_session(target: FakeModel, draft: FakeModel | None = None) -> Session:
    models = LoadedModels(target, draft, PLAN, {"total": LOAD_S})
    return Session(models, EngineSettings(step_aside=False))


@pytest.fixture
def target() -> FakeModel:
    return counting()


@pytest.fixture
def session(target: FakeModel) -> Iterator[Session]:
    with open_session(target, counting()) as session:
        yield session


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def holds_passes(target: FakeModel) -> tuple[threading.Event, threading.Event]:
    """Passes begin with the first event and go on with the second, or when they are cancelled."""
    begun, may_go_on = threading.Event(), threading.Event()

    def hook(model: FakeModel) -> None:
        begun.set()
        model.wait_until(may_go_on.is_set)

    target.hook = hook
    return begun, may_go_on


# What it yields and what it leaves


def test_it_yields_tokens_and_has_a_result_at_its_end(session: Session) -> None:
    generation = session.stream(PROMPT, max_tokens=5)
    assert [event.token for event in generation] == [0, 1, 2, 3, 4]
    assert generation.result.tokens == (0, 1, 2, 3, 4)
    assert generation.result.finish_reason == "length"


def test_its_end_carries_the_result_as_a_generators_does(session: Session) -> None:
    generation = session.stream(PROMPT, max_tokens=1)
    next(generation)
    for _ in range(2):
        with pytest.raises(StopIteration) as end:
            next(generation)
        assert end.value.value is generation.result


def test_generate_is_a_stream_to_its_end(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=5).tokens == (0, 1, 2, 3, 4)


def test_there_is_no_result_before_the_end(session: Session) -> None:
    with session.stream(PROMPT) as generation:
        next(generation)
        with pytest.raises(UsageError, match="has not ended"):
            _ = generation.result


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
    with pytest.raises(ModelError, match="the disk is gone"):
        list(generation)
    with pytest.raises(ModelError, match="the disk is gone"):
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


# Figures


def test_it_knows_how_long_loading_took(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=1).timings.load_s == LOAD_S


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


# Cancelling


def test_cancelled_before_its_first_token_it_has_none(session: Session) -> None:
    generation = session.stream(PROMPT)
    generation.cancel()
    assert list(generation) == []
    assert (generation.result.finish_reason, generation.result.tokens) == ("cancelled", ())


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


def test_cancelling_after_the_end_changes_nothing(session: Session) -> None:
    generation = session.stream(PROMPT, max_tokens=2)
    assert len(list(generation)) == 2
    generation.cancel()
    assert generation.result.finish_reason == "length"
    assert session.generate(PROMPT, max_tokens=2).tokens == (0, 1)


# Waiting in line


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
            _until(lambda expected=number + 1: session.n_waiting == expected)
        first.close()
        for done in waiting:
            done.result()
    assert order == [0, 1, 2]


def _run(session: Session, number: int, order: list[int]) -> None:
    for _ in session.stream(PROMPT, max_tokens=2):
        order[:] = [*dict.fromkeys([*order, number])]


def test_who_waits_leaves_alone_what_another_thread_is_closing(
    session: Session,
    target: FakeModel,
    elsewhere: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_looks = itertools.count(1)
    looks = [0]
    check, truncate = session._engine._check_waiting, target.truncate

    def counted(turn: Turn) -> None:
        looks[0] = next(n_looks)
        check(turn)

    monkeypatch.setattr(session._engine, "_check_waiting", counted)
    first = session.stream(PROMPT)
    next(first)
    waiting = elsewhere.submit(session.generate, PROMPT, max_tokens=2)
    _until(lambda: looks[0] > 0)

    def slow(n_tokens: int) -> None:
        seen = looks[0]
        _until(lambda: looks[0] > seen + 1 or waiting.done())
        monkeypatch.undo()
        truncate(n_tokens)

    monkeypatch.setattr(target, "truncate", slow)
    first.close()
    assert waiting.result().tokens == (0, 1)


def test_cancelled_in_line_it_ends_without_a_token(
    session: Session, elsewhere: ThreadPoolExecutor
) -> None:
    with session.stream(PROMPT) as first:
        next(first)
        second = session.stream(PROMPT)
        waiting = elsewhere.submit(list, second)
        _until(lambda: session.n_waiting == 1)
        second.cancel()
        assert waiting.result() == []
        assert second.result.finish_reason == "cancelled"
        assert next(first).token == 1


def test_a_thread_that_would_wait_for_itself_is_told(session: Session) -> None:
    first, second = session.stream(PROMPT), session.stream(PROMPT, max_tokens=1)
    next(first)
    with pytest.raises(UsageError, match="finish it, close it"):
        next(second)
    first.close()
    assert [event.token for event in second] == [0]


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
    with pytest.raises(UsageError, match="one thread at a time"):
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
    _until(lambda: session.n_waiting == 1)
    del first
    assert waiting.result().tokens == (0, 1)


def _until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not holds():
        pause.wait(0.001)


# Callbacks


@pytest.mark.parametrize("ending", ["session", "generation"])
def test_a_callback_cannot_close_what_calls_it(target: FakeModel, ending: str) -> None:
    with open_session(target) as session:
        generation = session.stream(PROMPT, max_tokens=2, progress=lambda what, share: end())
        end = session.close if ending == "session" else generation.close
        with pytest.raises(UsageError, match="cannot be closed from within a call of its own"):
            next(generation)


def test_a_callback_cannot_start_what_would_wait_for_it(session: Session) -> None:
    generation = session.stream(PROMPT, progress=lambda what, share: _ignore(session))
    with pytest.raises(UsageError, match="within a call of the session"):
        next(generation)


def _ignore(session: Session) -> None:
    session.generate(PROMPT)


def test_a_callback_may_cancel_and_encode(session: Session) -> None:
    def progress(what: str, share: float) -> None:
        session.encode("text")
        session.cancel()

    generation = session.stream(PROMPT, progress=progress)
    assert list(generation) == []
    assert generation.result.finish_reason == "cancelled"


# Closing the session


def test_after_closing_everything_is_refused(target: FakeModel) -> None:
    session = open_session(target)
    begun, fresh = session.stream(PROMPT), session.stream(PROMPT)
    next(begun)
    session.close()
    session.close()
    uses: Sequence[Callable[[], object]] = (
        lambda: next(begun),
        lambda: next(fresh),
        lambda: session.encode("text"),
        lambda: session.stream("text"),
        lambda: session.stream(PROMPT),
        lambda: session.generate("text"),
        lambda: session.generate(PROMPT),
    )
    for use in uses:
        with pytest.raises(SessionClosed, match="the session is closed"):
            use()


def test_what_asks_nothing_of_the_models_goes_on_after_closing(target: FakeModel) -> None:
    session = open_session(target)
    generation = session.stream(PROMPT)
    next(generation)
    session.close()
    generation.cancel()
    generation.close()
    session.cancel()
    assert generation.result.finish_reason == "cancelled"
    assert generation.result.tokens[0] == 0
    assert session.target.name == "fake"
    assert session.plan is PLAN


def test_a_finished_generation_keeps_its_result_after_closing(target: FakeModel) -> None:
    with open_session(target) as session:
        generation = session.stream(PROMPT, max_tokens=1)
        assert len(list(generation)) == 1
    assert list(generation) == []
    assert generation.result.finish_reason == "length"


def test_closing_ends_what_another_thread_is_at(
    target: FakeModel, elsewhere: ThreadPoolExecutor
) -> None:
    session = open_session(target)
    begun, _ = holds_passes(target)
    generation = session.stream(PROMPT)
    tokens = elsewhere.submit(list, generation)
    begun.wait()
    session.close()
    assert tokens.result() == []
    assert generation.result.finish_reason == "cancelled"


def test_closing_turns_away_who_waits(target: FakeModel, elsewhere: ThreadPoolExecutor) -> None:
    session = open_session(target)
    first, second = session.stream(PROMPT), session.stream(PROMPT)
    next(first)
    waiting = elsewhere.submit(list, second)
    _until(lambda: session.n_waiting == 1)
    session.close()
    with pytest.raises(SessionClosed):
        waiting.result()


def test_closing_waits_for_who_encodes(target: FakeModel, elsewhere: ThreadPoolExecutor) -> None:
    """Native tokenizers are freed with their model."""
    session = open_session(target)
    encoding, may_go_on = threading.Event(), threading.Event()
    encode = target.vocabulary.encode

    def slow(text: str, add_special: bool = True) -> list[int]:
        encoding.set()
        may_go_on.wait()
        assert not target._is_closed
        return encode(text, add_special)

    target.vocabulary.encode = slow  # type: ignore[method-assign]
    tokens = elsewhere.submit(session.encode, "ab")
    encoding.wait()
    with ThreadPoolExecutor(1) as closer:
        closing = closer.submit(session.close)
        _until(lambda: session._engine._users.is_closing)
        may_go_on.set()
        closing.result()
    assert len(tokens.result()) == 2
    assert target._is_closed


def test_a_session_lives_as_long_as_its_generations(target: FakeModel) -> None:
    generation = open_session(target).stream(PROMPT, max_tokens=3)
    assert [event.token for event in generation] == [0, 1, 2]
    generation._owner.close()  # type: ignore[attr-defined]


def test_a_forgotten_session_is_closed_with_a_warning(target: FakeModel) -> None:
    draft = counting()
    session = open_session(target, draft)
    generation = session.stream(PROMPT)
    next(generation)
    with pytest.warns(ResourceWarning, match="a Session was never closed"):
        del session, generation
    for thread in threading.enumerate():
        if thread.name == "edgespec-close":
            thread.join()
    assert target._is_closed
    assert draft._is_closed


# Arguments


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt": None}, "the prompt must be text or a list of token ids, not None"),
        ({"prompt": b"abc"}, "the prompt is bytes: decode them"),
        ({"prompt": "a\ud800"}, "half a character .* at position 1"),
        ({"prompt": [1, 2.5]}, "a token of the prompt must be a whole number, not 2.5"),
        ({"prompt": [True]}, "a token of the prompt must be a whole number, not True"),
        ({"prompt": {1: 2}}, "the prompt must be text or a list of token ids"),
        ({"prompt": 7}, "the prompt must be text or a list of token ids, not 7"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number, not 1.5"),
        ({"max_tokens": "x"}, "max_tokens must be a whole number, not 'x'"),
        ({"max_tokens": True}, "max_tokens must be a whole number, not True"),
        ({"max_tokens": -1}, "max_tokens must be >= 0"),
        ({"stop": b"abc"}, "stop must be text, not bytes: decode them first"),
        ({"stop": ["a", None]}, r"stop\[1\] must be text, not None"),
        ({"stop": 3}, "stop must be text or a list of texts, not 3"),
        ({"stop": ""}, "not empty"),
        ({"stop": ["\udc00"]}, "half a character"),
        ({"sampling": {"temperature": 1}}, "sampling must be of the type SamplingParams"),
        ({"sampling": 0}, "sampling must be of the type SamplingParams, not 0"),
        ({"progress": 1}, "progress must be a function or None, not 1"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_at_once(
    session: Session, request_: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        session.stream(**({"prompt": PROMPT} | request_))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [None, b"abc", "\ud800", 3])
def test_what_is_no_text_is_not_encoded(session: Session, text: object) -> None:
    with pytest.raises(UsageError, match="text"):
        session.encode(text)  # type: ignore[arg-type]


def test_one_stop_string_is_a_list_of_one(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=9, stop="cd").text == "ab"


def test_no_stop_strings_may_be_none(session: Session) -> None:
    assert session.generate(PROMPT, max_tokens=2, stop=None).text == "ab"  # type: ignore[arg-type]


def test_every_error_of_the_api_is_one_of_edgespecs() -> None:
    assert issubclass(SessionClosed, EdgespecError)
