"""Copies of an answer, and several prompts in one request, over a session that counts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse

from edgespec.chat.prompts import ChatPrompt
from edgespec.completions import request_limits
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions
from edgespec.errors import ContextOverflow, UsageError
from edgespec.ports.text_request import TextRequest
from edgespec.values import FinishReason, GenerationResult, TokenEvent, TokenLogprobs
from sentences import refuses


class SeedTokens:
    """A generation that writes its prompt and its seed."""

    def __init__(
        self, session: SeedSession, prompt: Sequence[int], seed: int, has_logs: bool
    ) -> None:
        self._session = session
        self._prompt = tuple(prompt)
        self._logs = TokenLogprobs.of(-1.0, [(1, -1.0)]) if has_logs else None
        self._pieces = [f"{prompt[0]}:", str(seed)]
        self._reason: FinishReason = "stop"
        self._has_begun = False

    def run_ahead(self) -> None:
        self._session.n_begun += not self._has_begun
        self._has_begun = True

    @property
    def result(self) -> GenerationResult:
        tokens = tuple(range(len(self._pieces)))
        return GenerationResult("".join(self._pieces), self._prompt, tokens, self._reason)

    def __iter__(self) -> Iterator[TokenEvent]:
        self.run_ahead()
        for place, piece in enumerate(self._pieces):
            yield TokenEvent(piece, place, "target", place, self._logs)

    def cancel(self) -> None:
        self._reason = "cancelled"

    def close(self) -> None:
        pass


class SeedSession:
    target = SimpleNamespace(name="fake", n_ctx=100, n_vocab=50)
    eog_tokens = frozenset({0})

    def __init__(self) -> None:
        self.n_begun = 0
        self.alive: list[SeedTokens] = []

    def chat_prompt(self, messages: Any, tools: Any = None, template: Any = None) -> ChatPrompt:
        return ChatPrompt("", (7,), None, "")

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    tokenizer = property(lambda self: self)

    def piece(self, token: int) -> bytes:
        return bytes([ord("a") + token])

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int:
        return 100 if max_tokens is None else max_tokens

    def submit(self, request: TextRequest) -> SeedTokens:
        prompt, has_logprobs = request.prompt_tokens, request.n_logprobs is not None
        if len(prompt) > 10:
            raise UsageError("the prompt is too long")
        self.alive.append(SeedTokens(self, prompt, request.sampling.seed, has_logprobs))
        return self.alive[-1]


WARM = {"temperature": 1.0, "seed": 40}
LIMITED = {"serves": True}


def text(session: SeedSession, limited: Any = None, **fields: Any) -> Completion:
    return Completions(session, **(limited or {})).text(CompletionRequest.parse(fields))


def chat(session: SeedSession, **fields: Any) -> Completion:
    fields["messages"] = [{"role": "user", "content": "a"}]
    return Completions(session).chat(ChatRequest.parse(fields))


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def streamed(completion: Completion) -> dict[int, str]:
    """Texts of a stream by their index."""
    said: dict[int, str] = {}
    for chunk in completion:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            said[choice["index"]] = said.get(choice["index"], "") + piece
    return said


def test_copies_of_prompts_have_their_places_and_seeds():
    answer = text(SeedSession(), prompt=["b", "c"], n=2, **WARM).whole()
    assert texts(answer) == ["1:40", "1:41", "2:40", "2:41"]


def test_a_stream_has_the_same_texts():
    assert streamed(text(SeedSession(), prompt=["b", "c"], n=2, stream=True, **WARM)) == {
        0: "1:40",
        1: "1:41",
        2: "2:40",
        3: "2:41",
    }
    assert streamed(chat(SeedSession(), n=2, stream=True, **WARM)) == {0: "7:40", 1: "7:41"}


def test_usage_counts_prompts_once_and_answers_all():
    for temperature in (0.0, 1.0):
        usage = text(SeedSession(), prompt=["bbb", "c"], n=2, temperature=temperature).whole()[
            "usage"
        ]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 8)


def test_a_prompt_that_cannot_be_read_is_refused_before_any_text():
    session = SeedSession()
    with refuses(UsageError):
        text(session, prompt=["b", "c" * 11])
    with refuses(RequestError):
        text(session, prompt=[[1], [50]])
    with pytest.raises(ContextOverflow) as caught:
        text(session, {"max_prompt_tokens": 2}, prompt=["b", "ccc"])
    overflow = caught.value
    assert (overflow.param, overflow.n_ctx, overflow.n_prompt_tokens) == ("prompt.1", 2, 3)
    assert session.n_begun == 0


def test_cancelling_ends_the_text_and_those_to_come():
    session = SeedSession()
    completion = text(session, prompt=["b", "c"], stream=True)
    events = iter(completion)
    next(events)
    completion.cancel()
    assert [chunk["choices"][0]["index"] for chunk in events] == [0] * 2
    assert session.n_begun == 1


def test_choices_that_are_kept_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(request_limits, "MAX_ANSWER_CHARACTERS", 10)
    assert texts(text(SeedSession(), LIMITED, prompt="b", n=2, **WARM).whole()) == ["1:40", "1:41"]
    with refuses(RequestError):
        text(SeedSession(), LIMITED, prompt="b", n=3, **WARM).whole()
    assert len(streamed(text(SeedSession(), LIMITED, prompt="b", n=3, stream=True, **WARM))) == 3


def test_as_many_characters_as_are_kept_fit_into_the_row():
    tracemalloc.start()
    choices = [
        {"text": "".join(["😀"] * (request_limits.MAX_ANSWER_CHARACTERS // 8))} for _ in range(8)
    ]
    JSONResponse({"choices": choices})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.9 * request_limits.ANSWER_BYTES < peak <= request_limits.ANSWER_BYTES


class SlowTokens(SeedTokens):
    """A generation that goes on once a number of them have begun."""

    def __iter__(self) -> Iterator[TokenEvent]:
        session = cast(SlowSession, self._session)
        for n, event in enumerate(super().__iter__()):
            if n:
                assert session.n_begun >= session.n_awaited
            yield event


class SlowSession(SeedSession):
    def __init__(self, n_awaited: int) -> None:
        super().__init__()
        self.n_awaited = n_awaited

    def submit(self, request: TextRequest) -> SeedTokens:
        return SlowTokens(self, request.prompt_tokens, request.sampling.seed, False)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_written_together_where_the_request_may_have_several(stream: bool) -> None:
    session = SlowSession(n_awaited=3)
    limits = {"n_at_once": lambda: 3}
    completion = text(session, limits, prompt=["b", "c"], n=2, stream=stream, **WARM)
    said = streamed(completion) if stream else dict(enumerate(texts(completion.whole())))
    assert said == {0: "1:40", 1: "1:41", 2: "2:40", 3: "2:41"}
    assert session.n_begun == 4


def test_closing_ends_the_choices_that_are_written_ahead() -> None:
    session, heard = SlowSession(n_awaited=3), []
    limits = {"n_at_once": lambda: 3, "on_result": heard.append}
    completion = text(session, limits, prompt="b", n=4, stream=True, **WARM)
    events = iter(completion)
    next(events)
    completion.close()
    assert 2 <= len(heard) <= 3
