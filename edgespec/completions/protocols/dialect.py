"""Protocols as a server sees them: how a request is read, and how it is answered.

The protocols of OpenAI's completions are what answers are formatted in, so that theirs is the
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.answer_parts import Told
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CommonRequest, CompletionRequest
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions

R = TypeVar("R", bound=CommonRequest)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream: a JSON object, and the name of its kind where a protocol has one."""

    content: Answer
    name: str | None = None


class Reply(Protocol):
    """Protocol of what formats one answer. Whole answers need `whole` alone."""

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        """The whole answer, given that of the completion, which has ended."""

    def stream(self, completion: Completion) -> Completion | ToldParts:
        """Steps of the completion while it is written; the last one `is_last`."""

    def chunk(self, told: Any, completion: Completion) -> Iterable[Event]:
        """Events for the next thing that the stream tells."""

    def end(self, completion: Completion) -> Iterable[Event]:
        """Events behind the last chunk."""

    def failed(self, refusal: Refusal, request_id: str) -> Iterable[Event]:
        """Events of a stream that ends in an error."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been read."""

    streams: bool
    start: Callable[..., Completion]
    """Starts the answer, given the name of the client; raises UsageError and ModelError."""
    reply: Reply
    waiting: Callable[[], Iterable[Event]] = tuple
    """Events that say that the answer goes on where there is nothing to tell; none: a comment."""


Dialect = Callable[[Any], Asked]
"""One route's protocol: reads a request in decoded JSON; raises RequestError."""


def openai_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error in OpenAI's format."""
    return refusal.content


def is_last(told: Any) -> bool:
    """True for what tells the end of a text."""
    if isinstance(told, Told):
        return told.finish_reason is not None
    return any(choice["finish_reason"] for choice in told["choices"])


class ToldParts:
    """The parts of a completion as they are told."""

    def __init__(self, completion: Completion) -> None:
        self.cancel, self.close = completion.cancel, completion.close
        self._told = completion.told()

    def __iter__(self) -> Iterator[Told]:
        return self._told

    def __next__(self) -> Told:
        return next(self._told)


class SameReply:
    """Formats nothing: the answer has the format already."""

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        return answer

    def stream(self, completion: Completion) -> Completion:
        return completion

    def chunk(self, told: Answer, completion: Completion) -> Iterable[Event]:
        return (Event(told),)

    def end(self, completion: Completion) -> Iterable[Event]:
        return ()

    def failed(self, refusal: Refusal, request_id: str) -> Iterable[Event]:
        return (Event(refusal.content),)


def chat_dialect(completions: Completions) -> Dialect:
    """`/v1/chat/completions`."""
    return _same(ChatRequest, completions.chat)


def text_dialect(completions: Completions) -> Dialect:
    """`/v1/completions`."""
    return _same(CompletionRequest, completions.text)


def _same(kind: type[R], start: Callable[[R, str], Completion]) -> Dialect:
    def read(content: object) -> Asked:
        request = kind.parse(content)
        return Asked(request.stream, lambda client="": start(request, client), SameReply())

    return read
