"""Protocols as a server sees them: how a request is read, and what formats its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has been read."""

    streams: bool
    start: Callable[..., Completion]
    """Starts the answer, given its reply and the name of the client; raises UsageError and
    ModelError."""
    reply: Reply
    waiting: Callable[[], Iterable[Answer]] = tuple
    """Events that say that the answer goes on where there is nothing to tell; none: a comment."""

    def begin(self, client: str = "") -> Completion:
        """Start the answer. Raises UsageError and ModelError."""
        return self.start(self.reply, client)


Dialect = Callable[[Any], Asked]
"""One route's protocol: reads a request in decoded JSON; raises RequestError."""


def openai_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error in OpenAI's format."""
    return refusal.content


def chat_dialect(completions: Completions, content: object) -> Asked:
    """Read a request to `/v1/chat/completions`."""
    request = ChatRequest.parse(content)
    reply = ChatReply(completions, request)
    return Asked(request.stream, partial(completions.chat, request), reply)


def text_dialect(completions: Completions, content: object) -> Asked:
    """Read a request to `/v1/completions`."""
    request = CompletionRequest.parse(content)
    reply = TextReply(completions, request)
    return Asked(request.stream, partial(completions.text, request), reply)
