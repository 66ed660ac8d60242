"""Progress of a prompt in a stream, in the shape of llama.cpp's server."""

from __future__ import annotations

import time

import pytest

import edgespec
from edgespec.completions.prompt_progress import FollowedTokens, PromptProgress
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings
from edgespec.values import GenerationResult, TokenEvent

LONG = "def f(x):\n    return x + 1\n" * 40


class PromptReader:
    """A generation that reads a prompt of eight tokens, two of which it has, and writes two."""

    result = GenerationResult("ab", tuple(range(8)), (1, 2), "stop")

    def __init__(self, progress) -> None:
        self._progress = progress
        self._told = []

    def tell(self, item) -> None:
        self._told.append(item)

    def __iter__(self):
        for share in (0.25, 0.5, 0.5, 0.4, 0.75):
            self._progress("reading the prompt", share)
        yield from self._told
        yield TokenEvent("a", 1, "target", 0)
        yield TokenEvent("b", 2, "target", 0)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_progress_grows_up_to_the_whole_before_the_first_token():
    times = iter(range(10))
    items = list(FollowedTokens(PromptReader, 8, lambda: next(times)))
    assert [one.processed for one in items[:4]] == [2, 4, 6, 8]
    assert {(one.total, one.cache) for one in items[:4]} == {(8, 2)}
    assert [one.time_ms for one in items[:4]] == sorted(one.time_ms for one in items[:4])
    assert items[0] == PromptProgress(8, 2, 2, 0)
    assert [one.text for one in items[4:]] == ["a", "b"]


def test_a_generation_that_fails_says_so():
    class Failing(PromptReader):
        def __iter__(self):
            yield from ()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(FollowedTokens(Failing, 8))


def test_one_that_was_not_begun_can_be_closed():
    FollowedTokens(PromptReader, 8).close()


@pytest.fixture(scope="module", params=[1, 2])
def completions(request):
    settings = LoadSettings(model=embedded_pair().target, n_parallel=request.param, batch_size=64)
    with edgespec.load(settings) as session:
        yield Completions(session, sampling={"temperature": 0.0})


def chunks(completion: Completion) -> tuple[list[dict], list[dict]]:
    """The progress and the other chunks of a stream."""
    told, others = [], []
    for chunk in completion:
        (told if "prompt_progress" in chunk else others).append(chunk)
    return told, others


def stream(**fields: object) -> CompletionRequest:
    return CompletionRequest.parse({"prompt": LONG, "max_tokens": 3, "stream": True} | fields)


@pytest.mark.costly
def test_a_stream_tells_of_a_long_prompt_in_steps(completions):
    told, others = chunks(completions.text(stream(prompt=LONG + "# 1", return_progress=True)))
    found = [chunk["prompt_progress"] for chunk in told]
    assert all(set(one) == {"total", "cache", "processed", "time_ms"} for one in found)
    processed = [one["processed"] for one in found]
    assert len(processed) > 3
    assert processed == sorted(set(processed)) and processed[-1] == found[0]["total"]
    assert [chunk["choices"][0]["text"] for chunk in told] == [""] * len(told)
    assert others[0]["choices"][0]["text"]


def test_what_was_in_the_cache_is_told(completions):
    prompt = LONG + "# 2"
    list(completions.text(stream(prompt=prompt)))
    told, _ = chunks(completions.text(stream(prompt=prompt, return_progress=True)))
    first, last = told[0]["prompt_progress"], told[-1]["prompt_progress"]
    assert first["processed"] == first["cache"] == last["cache"] > 0
    assert last["processed"] == last["total"]


@pytest.mark.parametrize("asked", [False, None])
def test_nothing_is_told_unless_it_is_asked_for(completions, asked):
    told, _ = chunks(completions.text(stream(return_progress=asked)))
    assert told == []


def test_the_text_is_the_same(completions):
    def text(**fields: object) -> str:
        _, others = chunks(completions.text(stream(**fields)))
        return "".join(chunk["choices"][0]["text"] for chunk in others)

    assert text(return_progress=True) == text()


def test_copies_tell_of_their_prompt_once(completions):
    asked = stream(return_progress=True, n=2, temperature=1.0)
    told, _ = chunks(completions.text(asked))
    assert {chunk["choices"][0]["index"] for chunk in told} == {0}


def test_a_whole_answer_takes_the_field(completions):
    assert completions.text(stream(stream=False, return_progress=True)).whole()["choices"]


def test_a_cancelled_stream_ends(completions):
    completion = completions.text(stream(return_progress=True, max_tokens=None))
    next(completion)
    completion.close()
    assert completion.result.finish_reason == "cancelled"


def test_chat_requests_have_the_field():
    fields = {"messages": [{"role": "user", "content": "a"}], "return_progress": True}
    assert ChatRequest.parse(fields).return_progress


def test_what_is_told_can_be_taken_while_the_engine_still_tells_it(completions):
    """The engine's thread may stay in the callback when the reader already wants the next token."""
    n_told = 0

    def slow(what: str, share: float) -> None:
        nonlocal n_told
        n_told += 1
        generation.tell(n_told)
        time.sleep(0.02)

    session = completions._session
    with session.stream("# 3" + LONG, max_tokens=2, progress=slow) as generation:
        told = [item for item in generation if isinstance(item, int)]
    assert told == list(range(1, n_told + 1))
    assert n_told > 3
