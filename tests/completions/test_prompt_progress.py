"""Progress of a prompt in a stream, in the shape of llama.cpp's server."""

from __future__ import annotations

import itertools
import threading

import pytest

import edgespec
from edgespec.completions.requests import CompletionRequest
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings

LONG = "def f(x):\n    return x + 1\n" * 40


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


def test_the_text_is_the_same(completions):
    def text(**fields: object) -> str:
        _, others = chunks(completions.text(stream(**fields)))
        return "".join(chunk["choices"][0]["text"] for chunk in others)

    assert text(return_progress=True) == text()


def test_copies_tell_of_their_prompt_once(completions):
    asked = stream(return_progress=True, n=2, temperature=1.0)
    told, _ = chunks(completions.text(asked))
    assert {chunk["choices"][0]["index"] for chunk in told} == {0}


def test_a_cancelled_stream_ends(completions):
    completion = completions.text(stream(return_progress=True, max_tokens=None))
    events = iter(completion)
    next(events)
    completion.close()
    assert completion.result.finish_reason == "cancelled"


def test_after_a_time_a_text_ends_at_its_next_line_break(completions):
    seconds = itertools.count()
    timed = Completions(completions._session, clock=lambda: float(next(seconds)))
    asked = {"prompt": LONG, "max_tokens": 60, "temperature": 0.0, "t_max_predict_ms": 1}
    choice = timed.text(CompletionRequest.parse(asked)).whole()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["text"].count("\n") == 1


def test_a_callback_is_called_where_the_tokens_are_taken(completions):
    threads, shares = set(), []

    def progress(what: str, share: float) -> None:
        threads.add(threading.get_ident())
        shares.append(share)

    completions._session.generate("# 3" + LONG, max_tokens=2, progress=progress)
    assert threads == {threading.get_ident()}
    assert len(shares) > 3 and shares == sorted(set(shares)) and shares[-1] == 1.0


def test_a_callback_that_fails_ends_its_text_alone(completions):
    def failing(what: str, share: float) -> None:
        raise ZeroDivisionError

    session = completions._session
    generation = session.stream("# 4" + LONG, progress=failing)
    with pytest.raises(ZeroDivisionError):
        next(generation)
    assert generation.result.finish_reason == "cancelled"
    assert session.generate("# 5", max_tokens=2).tokens
