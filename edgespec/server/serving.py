"""Loaded models as the routes use them, and the protocols that they are asked in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from edgespec.completions.answers import Answer, fingerprint
from edgespec.completions.protocols.dialect import Dialect, chat_dialect, text_dialect
from edgespec.completions.protocols.message_replies import messages_dialect
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.protocols.response_replies import StoredResponses, responses_dialect
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled
from edgespec.server.llama_routes import llama_dialect
from edgespec.server.ollama_routes import ollama_dialect
from edgespec.server.queueing import Queue, ServerFigures, Turns
from edgespec.session.embedder import Embedder
from edgespec.session.session import Session
from edgespec.settings.server_settings import ServerSettings

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
    dialect: Callable[[Completions, StoredResponses], Dialect]
    summary: str = ""
    body: type[Any] | None = None
    """Model of its requests, if OpenAPI's document describes it."""
    end: str = ""
    """Text behind the last event of a stream."""
    told: Callable[[Answer], str] = event
    """A part of a stream with an object."""

    @property
    def has_events(self) -> bool:
        """True if streams are server-sent events, which may have comments."""
        return self.told is event


DOORS = (
    Door(
        "/chat/completions",
        lambda one, _: partial(chat_dialect, one),
        "Answer a conversation",
        ChatRequest,
        DONE,
    ),
    Door(
        "/completions",
        lambda one, _: partial(text_dialect, one),
        "Continue texts",
        CompletionRequest,
        DONE,
    ),
    Door(
        "/responses",
        lambda one, its: partial(responses_dialect, one, its),
        "Answer in OpenAI's Responses",
        ResponsesRequest,
    ),
    Door(
        "/messages",
        lambda one, _: partial(messages_dialect, one),
        "Answer in Anthropic's messages",
        MessagesRequest,
    ),
    Door("/completion", lambda one, _: llama_dialect(one)),
    Door("/infill", lambda one, _: llama_dialect(one, fills=True)),
    Door("/api/chat", lambda one, _: ollama_dialect(one, chats=True), told=line),
    Door("/api/generate", lambda one, _: ollama_dialect(one, chats=False), told=line),
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it was loaded for a server."""

    model: Session | Embedder
    sampling: Mapping[str, Any] | None = None
    """Defaults for requests; None: the model's own."""
    leaves_room: bool = False
    """True if the plan keeps room for an embedding model beside this one."""


class ServedText:
    """A loaded model that writes texts."""

    def __init__(
        self,
        session: Session,
        name: str,
        loaded: LoadedModel,
        settings: ServerSettings,
        max_tokens: int | None,
        stored: StoredResponses,
        figures: ServerFigures,
        queue: Queue,
    ) -> None:
        """No answer has more than `max_tokens`; None: as many as fit into the context."""
        self.name = name
        self.model = session
        self.turns = Turns(session.n_parallel)
        self.leaves_room = loaded.leaves_room
        sampling, reasoning = loaded.sampling, settings.reasoning_budget
        self.completions = Completions(
            session,
            name,
            settings.max_prompt or session.target.n_ctx,
            sampling=dict(session.chat_sampling if sampling is None else sampling),
            max_tokens=max_tokens,
            fingerprint=fingerprint(session.target),
            limits_answers=True,
            on_result=figures.count,
            n_at_once=partial(queue.n_for_each, self.turns),
            writes_ahead=True,
            reasoning_budget=None if reasoning == -1 else reasoning,
            check_open=_refuse_cut,
        )
        self.dialects = {door.path: door.dialect(self.completions, stored) for door in DOORS}
        """The protocols of the routes, answered by this model, by path."""

    @property
    def details(self) -> dict[str, Any]:
        """Fields of a list of models while it is loaded."""
        return {
            "context_length": self.model.target.n_ctx,
            "sampling": self.completions.sampling,
            "chat": self.completions.chat_refusal is None,
        }


def _refuse_cut() -> NoReturn:
    """Raise Cancelled for a text cut short: clients must not take it as complete."""
    raise Cancelled("the server is shutting down")


class ServedVectors:
    """A loaded embedding model."""

    leaves_room = False

    def __init__(self, embedder: Embedder, name: str) -> None:
        self.name = name
        self.model = embedder

    @property
    def details(self) -> dict[str, Any]:
        """Fields of a list of models while it is loaded."""
        return {"context_length": self.model.target.n_ctx, "dimensions": self.model.n_values}
