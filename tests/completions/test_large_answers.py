"""Answers with log probabilities that a server keeps whole have a limit, and a row in the plan."""

from __future__ import annotations

import json
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.chat.prompts import ChatPrompt
from edgespec.completions import request_limits
from edgespec.completions.answers import chat_logprobs
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.service import Completions
from edgespec.values import TokenEvent, TokenLogprobs
from sentences import refuses

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


class RoomySession:
    """With room for a million tokens."""

    target = SimpleNamespace(name="fake")

    def chat_prompt(self, messages: Any, tools: Any = None, template: Any = None) -> ChatPrompt:
        return ChatPrompt("", (1,), None, "")

    def encode(self, text: str) -> list[int]:
        return [1]

    def piece(self, token: int) -> bytes:
        return b"a"

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int:
        return min(1_000_000 if max_tokens is None else max_tokens, 1_000_000)

    def submit(self, request: Any) -> Any:
        return SimpleNamespace()


MOST = request_limits.max_answer_tokens(20)
SERVICE = Completions(RoomySession(), serves=True)


@pytest.mark.costly
@pytest.mark.parametrize("n_others", [0, 5, 20])
def test_what_is_allowed_fits_into_the_row(n_others: int) -> None:
    top = [(100_000 + i, -0.123456789 * i) for i in range(n_others)]
    tracemalloc.start()
    events = [
        TokenEvent("hello ", i, "target", i, TokenLogprobs.of(-1.5 * i, top))
        for i in range(request_limits.max_answer_tokens(n_others))
    ]
    said = chat_logprobs(events, lambda token: b"hello wor%d" % token)
    json.dumps(said).encode()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # the row is planned for objects of Python 3.11; those of later versions are smaller
    least = 0.5 if sys.version_info < (3, 12) else 0.4
    assert least * request_limits.ANSWER_BYTES < peak <= request_limits.ANSWER_BYTES


@pytest.mark.parametrize("more", [{}, {"max_tokens": MOST + 1}, {"stream": True, "tools": TOOLS}])
def test_larger_answers_are_refused(more: dict[str, Any]) -> None:
    with refuses(RequestError):
        SERVICE.chat(ChatRequest(**CHAT, top_logprobs=20, **more))
    with refuses(RequestError):
        SERVICE.text(CompletionRequest(prompt="a", logprobs=20, max_tokens=MOST + 1))


@pytest.mark.parametrize("more", [{"max_tokens": MOST}, {"stream": True}])
def test_smaller_ones_and_streams_are_not(more: dict[str, Any]) -> None:
    SERVICE.chat(ChatRequest(**CHAT, top_logprobs=20, **more))
    SERVICE.text(CompletionRequest(prompt="a", logprobs=20, **more))
