"""Loaded models as the routes use them, and the protocols that they are asked in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.message_replies import MessagesReply
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.protocols.response_replies import ResponsesReply
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Reply
from edgespec.completions.service import Completions
from edgespec.server.llama_routes import llama_dialect
from edgespec.server.ollama_routes import ollama_dialect
from edgespec.server.queueing import Turns
from edgespec.session.embedder import Embedder
from edgespec.session.session import Session

DONE = "data: [DONE]\n\n"
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def event(content: Answer) -> str:
    """A server-sent event with `content` as JSON, and its type as its name if it has one."""
    named = f"event: {content['type']}\n" if "type" in content else ""
    text = json.dumps(content, ensure_ascii=False)
    # clients split events by str.splitlines, which takes more than line feeds for line ends
    text = _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)
    return f"{named}data: {text}\n\n"


def line(content: Answer) -> str:
    """A line of a stream of JSON."""
    return f"{json.dumps(content, ensure_ascii=False)}\n"


@dataclass(frozen=True, slots=True)
class Door:
    """A route that is answered with generated text: its protocol, whatever model answers."""

    path: str
    dialect: Callable[..., Reply]
    """Reads a request, given what writes answers, what is stored if it `stores`, and the body."""
    summary: str = ""
    body: type[Any] | None = None
    """Model of its requests, if OpenAPI's document describes it."""
    end: str = ""
    """Text behind the last event of a stream."""
    told: Callable[[Answer], str] = event
    """A part of a stream with an object: an event, beside which comments may stand, or a line."""
    stores: bool = False


DOORS = (
    Door("/chat/completions", ChatReply, "Answer a conversation", ChatRequest, DONE),
    Door("/completions", TextReply, "Continue texts", CompletionRequest, DONE),
    Door("/responses", ResponsesReply, "OpenAI's Responses", ResponsesRequest, stores=True),
    Door("/messages", MessagesReply, "Anthropic's messages", MessagesRequest),
    Door("/completion", llama_dialect),
    Door("/infill", partial(llama_dialect, fills=True)),
    Door("/api/chat", partial(ollama_dialect, chats=True), told=line),
    Door("/api/generate", partial(ollama_dialect, chats=False), told=line),
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it was loaded for a server."""

    model: Session | Embedder
    sampling: Mapping[str, Any] | None = None
    """Defaults for requests; None: the model's own."""
    leaves_room: bool = False
    """True if the plan keeps room for an embedding model beside this one."""


@dataclass(frozen=True, slots=True)
class ServedText:
    """A loaded model that writes texts."""

    name: str
    model: Session
    completions: Completions
    turns: Turns
    leaves_room: bool

    @property
    def details(self) -> dict[str, Any]:
        """Fields of a list of models while it is loaded."""
        return {
            "context_length": self.model.target.n_ctx,
            "sampling": self.completions.sampling,
            "chat": self.completions.chat_refusal is None,
        }


@dataclass(frozen=True, slots=True)
class ServedVectors:
    """A loaded embedding model."""

    name: str
    model: Embedder
    leaves_room: bool = False

    @property
    def details(self) -> dict[str, Any]:
        """Fields of a list of models while it is loaded."""
        return {"context_length": self.model.target.n_ctx, "dimensions": self.model.n_values}
