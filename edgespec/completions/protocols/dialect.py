"""Protocols as a server sees them: how a request is read, and how it is answered.

The protocols of OpenAI's completions are what answers are formatted in, so that theirs is the
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.completions.answers import Answer
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CommonRequest, CompletionRequest
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream: a JSON object, and the name of its kind where a protocol has one."""

    content: Answer
    name: str | None = None


class Reply(Protocol):
    """Protocol of what formats one answer. Whole answers need `whole` alone."""

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        """The whole answer, given that of the completion, which has ended."""

    def chunk(self, chunk: Answer, completion: Completion) -> Iterable[Event]:
        """Events for the next chunk of the completion's stream."""

    def end(self, completion: Completion) -> Iterable[Event]:
        """Events behind the last chunk."""

    def failed(self, refusal: Refusal, request_id: str) -> Iterable[Event]:
        """Events of a stream that ends in an error."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been read."""

    streams: bool
    start: Callable[[], Completion]
    """Starts the answer; raises UsageError and ModelError."""
    reply: Reply


Dialect = Callable[[Any], Asked]
"""One route's protocol: reads a request in decoded JSON; raises RequestError."""


def openai_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error in OpenAI's format."""
    return refusal.content


class SameReply:
    """Formats nothing: the answer has the format already."""

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        return answer

    def chunk(self, chunk: Answer, completion: Completion) -> Iterable[Event]:
        return (Event(chunk),)

    def end(self, completion: Completion) -> Iterable[Event]:
        return ()

    def failed(self, refusal: Refusal, request_id: str) -> Iterable[Event]:
        return (Event(refusal.content),)


def chat_dialect(completions: Completions) -> Dialect:
    """`/v1/chat/completions`."""

    def read(content: object) -> Asked:
        request = ChatRequest.parse(content)
        return _same(request, lambda: completions.chat(request))

    return read


def text_dialect(completions: Completions) -> Dialect:
    """`/v1/completions`."""

    def read(content: object) -> Asked:
        request = CompletionRequest.parse(content)
        return _same(request, lambda: completions.text(request))

    return read


def _same(request: CommonRequest, start: Callable[[], Completion]) -> Asked:
    return Asked(request.stream, start, SameReply())
