"""Loaded models as the routes use them, and the protocols that they are asked in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from edgespec.completions.answers import Answer, fingerprint
from edgespec.completions.protocols.dialect import (
    Dialect,
    chat_dialect,
    text_dialect,
)
from edgespec.completions.protocols.message_replies import messages_dialect
from edgespec.completions.protocols.response_replies import (
    StoredResponses,
    responses_dialect,
)
from edgespec.completions.running_request import OnResult
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled
from edgespec.server.llama_routes import llama_dialect
from edgespec.server.ollama_routes import line, ollama_dialect
from edgespec.server.queueing import Queue, Turns
from edgespec.server.streaming import DONE, event
from edgespec.session.embedder import Embedder
from edgespec.session.session import Session


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits of every answer, whatever its request asks for."""

    max_tokens: int | None = None
    """Most tokens; None: as many as fit into the context."""
    max_s: float | None = None
    """Most seconds from the turn of a request to the end of its answer; None: no limit."""
    reasoning_tokens: int | None = None
    """Most tokens of reasoning, unless a request names another number; None: no limit."""


NO_LIMITS = AnswerLimits()


@dataclass(frozen=True, slots=True)
class Door:
    """A route that is answered with generated text: its protocol, whatever model answers."""

    path: str
    dialect: Callable[[Completions, StoredResponses], Dialect]
    names_events: bool = False
    end: str = ""
    """Text behind the last event of a stream."""
    event: Callable[[Any, str | None], str] = event
    """A part of a stream with an object, and the name of its kind."""

    def told(self, content: Answer) -> str:
        """A part of a stream with an object, which has the name of its kind."""
        return self.event(content, content["type"] if self.names_events else None)

    @property
    def has_events(self) -> bool:
        """True if streams are server-sent events, which may have comments."""
        return self.event is event


DOORS = (
    Door("/chat/completions", lambda one, _: partial(chat_dialect, one), end=DONE),
    Door("/completions", lambda one, _: partial(text_dialect, one), end=DONE),
    Door("/responses", lambda one, its: partial(responses_dialect, one, its), names_events=True),
    Door("/messages", lambda one, _: partial(messages_dialect, one), names_events=True),
    Door("/completion", lambda one, _: llama_dialect(one)),
    Door("/infill", lambda one, _: llama_dialect(one, fills=True)),
    Door("/api/chat", lambda one, _: ollama_dialect(one, chats=True), event=line),
    Door("/api/generate", lambda one, _: ollama_dialect(one, chats=False), event=line),
)


class ServedText:
    """A loaded model that writes texts."""

    def __init__(
        self,
        session: Session,
        name: str,
        stored: StoredResponses,
        on_result: OnResult,
        queue: Queue,
        max_prompt_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: AnswerLimits = NO_LIMITS,
        leaves_room: bool = False,
    ) -> None:
        """`sampling` has defaults for requests; None: `session.chat_sampling`."""
        self.name = name
        self.model = session
        self.turns = Turns(session.n_parallel)
        self.leaves_room = leaves_room
        self.completions = Completions(
            session,
            name,
            max_prompt_tokens or session.target.n_ctx,
            sampling=dict(session.chat_sampling if sampling is None else sampling),
            max_tokens=limits.max_tokens,
            fingerprint=fingerprint(session.target),
            limits_answers=True,
            on_result=on_result,
            n_at_once=partial(queue.n_for_each, self.turns),
            writes_ahead=True,
            reasoning_budget=limits.reasoning_tokens,
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
