"""Closing a session: what ends, from wherever it is called, and what goes on after it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.errors import SessionClosed, UsageError
from edgespec.session.session import Session
from engine_cases import PROMPT, counting
from fake_model import FakeModel
from session_cases import holds_passes, open_session, until


@pytest.mark.parametrize("ending", ["session", "generation"])
def test_a_callback_cannot_close_what_calls_it(target: FakeModel, ending: str) -> None:
    with open_session(target) as session:
        generation = session.stream(PROMPT, max_tokens=2, progress=lambda what, share: end())
        end = session.close if ending == "session" else generation.close
        with pytest.raises(UsageError):
            next(generation)


def test_a_callback_may_write_another_text(session: Session) -> None:
    """It was refused while callbacks were called from the engine's thread, which writes it."""
    written: list[str] = []

    def progress(what: str, share: float) -> None:
        written.append(session.generate(PROMPT, max_tokens=3).text)

    generation = session.stream(PROMPT, max_tokens=3, progress=progress)
    assert [*generation] and {*written} == {generation.result.text}


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
        with pytest.raises(SessionClosed):
            use()


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


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("is_chat", [True, False])
def test_an_answer_is_no_whole_one_if_the_session_is_closed_during_it(
    target: FakeModel, elsewhere: ThreadPoolExecutor, is_chat: bool, streams: bool
) -> None:
    """OpenAI's format has no finish reason for it: a part with two choices ended as one, with
    "stop"."""
    session = open_session(target)
    session.use_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    begun, _ = holds_passes(target)
    fields = {"n": 2, "temperature": 1.0}
    if is_chat:
        request = ChatRequest.parse({"messages": [{"role": "user", "content": "a"}]} | fields)
        answer = session._completions().chat(request)
    else:
        answer = session._completions().text(CompletionRequest.parse({"prompt": "a"} | fields))
    said = elsewhere.submit(list, answer) if streams else elsewhere.submit(answer.whole)
    begun.wait()
    session.close()
    with pytest.raises(SessionClosed):
        said.result()


def test_closing_turns_away_who_waits(target: FakeModel, elsewhere: ThreadPoolExecutor) -> None:
    session = open_session(target)
    first, second = session.stream(PROMPT), session.stream(PROMPT)
    next(first)
    waiting = elsewhere.submit(list, second)
    until(lambda: session.n_waiting == 1)
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
        until(lambda: session._engine._users.is_closing)
        may_go_on.set()
        closing.result()
    assert len(tokens.result()) == 2
    assert target._is_closed


def test_a_session_lives_as_long_as_its_generations(target: FakeModel) -> None:
    session = open_session(target)
    kept = weakref.ref(session)
    generation = session.stream(PROMPT, max_tokens=3)
    del session
    assert [event.token for event in generation] == [0, 1, 2]
    left = kept()
    assert left is not None
    left.close()


def test_a_forgotten_session_is_closed_with_a_warning(target: FakeModel) -> None:
    draft = counting()
    session = open_session(target, draft)
    generation = session.stream(PROMPT)
    next(generation)
    with pytest.warns(ResourceWarning, match="Session"):
        del session, generation
    for thread in threading.enumerate():
        if thread.name == "edgespec-close":
            thread.join()
    assert target._is_closed
    assert draft._is_closed


def test_a_signals_handler_may_cancel_wherever_it_interrupts(session: Session) -> None:
    with session._engine._lock:
        session.cancel()
