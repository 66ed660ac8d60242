"""Serves models on a socket until it is stopped, and lets it end in an orderly way.

While a model is loaded for the first time, every request is told when to come again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.response_replies import StoredResponses
from edgespec.completions.refusals import overloaded
from edgespec.completions.request_limits import (
    BODIES_AT_ONCE,
    EMBEDDING_BODY_BYTES,
    STORED_BYTES,
    max_body_bytes,
)
from edgespec.ports import Progress
from edgespec.server.access_log import AccessLog
from edgespec.server.answering import Answers
from edgespec.server.application import Service, static_file
from edgespec.server.bodies import RequestBodies
from edgespec.server.budget_request import BudgetLimit
from edgespec.server.connections import ClientLimits, HttpServer
from edgespec.server.failures import Failures
from edgespec.server.front import Front, refused
from edgespec.server.guarding import Guard
from edgespec.server.hosting import ModelHost, Served
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.server.serving import NO_LIMITS, AnswerLimits, ServedText, ServedVectors
from edgespec.session.embedder import Embedder
from edgespec.session.session import Session

CLIENT_LIMITS = ClientLimits()
SHUTDOWN_S = 5
"""Seconds for clients to read the end of their responses at shutdown."""
DRAIN_S = 30.0
"""Default seconds that requests under way have once the server is told to end."""
MOST_AT_ONCE = 16
"""Requests at once that a server counts on whose models are not loaded yet."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as it was loaded for a server."""

    model: Session | Embedder
    sampling: Mapping[str, Any] | None = None
    """Defaults for requests; None: the model's own."""
    leaves_room: bool = False
    """True if the plan keeps room for an embedding model beside this one."""


class Server:
    """Serves one model, or several in turn, at one address."""

    def __init__(
        self,
        session: Session | Embedder | None,
        guard: Guard,
        model: str,
        max_waiting: int,
        max_prompt_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: ClientLimits = CLIENT_LIMITS,
        answer_limits: AnswerLimits = NO_LIMITS,
        log: AccessLog | None = None,
        drain_s: float = DRAIN_S,
        models: Sequence[HostedModel] = (),
        load: Callable[[HostedModel, bool, Progress], LoadedModel] | None = None,
        leaves_room: bool = False,
        together: bool = False,
        on_budget: Callable[[int | str], None] = lambda _: None,
        max_budget: int | str | None = None,
    ) -> None:
        """`sampling` has defaults for requests; None: `session.chat_sampling`. `drain` lets
        requests under way go on for `drain_s` seconds.

        With `models`, of which `session` is the one that is called `model`, the others are loaded
        by `load` when they are asked for; `session` may be None. `load` is told true for a model
        that comes beside another one, and its callback raises Cancelled once the server ends. With
        `together`, all share the budget and stay; otherwise `on_budget` is told a budget that a
        client has given, which is no larger than `max_budget`, by default that of the session.
        """
        self.model = model
        self.named = model if len(models) < 2 else f"{len(models)} models"
        """Name of the model, or number of models, for people."""
        if not models:
            only = HostedModel(model, isinstance(session, Embedder))
            if session is not None:
                only.size_bytes = session.target.size_bytes
                only.smallest_bytes = session.plan.smallest_bytes
            models = [only]
        stored, figures = StoredResponses(STORED_BYTES), ServerFigures()

        def served(name: str, loaded: LoadedModel) -> Served:
            if isinstance(loaded.model, Embedder):
                return ServedVectors(loaded.model, name)
            return ServedText(
                loaded.model,
                name,
                stored,
                figures.count,
                self._queue,
                max_prompt_tokens,
                loaded.sampling,
                answer_limits,
                loaded.leaves_room,
            )

        def load_served(one: HostedModel, beside: bool, progress: Progress) -> Served:
            assert load is not None
            return served(one.name, load(one, beside, progress))

        self._host = host = ModelHost(models, load_served, together)
        self._queue = Queue(
            max_waiting, lambda: [one.turns for one in host.loaded if isinstance(one, ServedText)]
        )
        self.chat_refusal: str | None = None
        """Reason why the loaded model cannot answer conversations; None if it can."""
        n_ctx = 0
        if session is not None:
            n_ctx = session.target.n_ctx
            first = served(model, LoadedModel(session, sampling, leaves_room))
            host.seat(next(one for one in models if one.name == model), first)
            if isinstance(first, ServedText):
                self.chat_refusal = first.completions.chat_refusal
        body_bytes = guard.max_body_bytes
        if body_bytes is None:
            least = EMBEDDING_BODY_BYTES if any(one.embeds for one in models) else 0
            body_bytes = max(least, max_body_bytes(n_ctx))
        bodies = RequestBodies(body_bytes, BODIES_AT_ONCE * body_bytes, limits.body_s)
        log = log or AccessLog()
        max_s = answer_limits.max_s
        answers = Answers(host, bodies, self._queue, figures, Failures(log), max_s)
        if max_budget is None:
            max_budget = session.plan.budget_bytes if session else "auto"
        service = Service(answers, guard, BudgetLimit.of(max_budget), on_budget)
        self._drain_s = drain_s
        self._is_over = threading.Event()
        """Set once the server has ended, or must end now."""
        n_at_once = self._queue.n_slots if len(models) == 1 else MOST_AT_ONCE
        front = Front(service.application(), guard, log, figures.answers)
        self._server = HttpServer(front, limits, n_at_once + max_waiting, SHUTDOWN_S + drain_s)

    def run(self, listener: socket.socket) -> None:
        """Serve until `stop` or `drain`. The caller closes the socket."""
        try:
            self._server.run(sockets=[listener])
        finally:
            self._is_over.set()

    def close(self) -> None:
        """Close the models that are loaded. Idempotent."""
        self._host.close()

    def drain(self) -> None:
        """Take no more requests, wait for those under way, and stop once their time is over.

        Called again, from any thread, it stops at once.
        """
        if self._server.should_exit:
            self._is_over.set()
            return
        self._server.should_exit = True
        self._is_over.wait(self._drain_s)
        self.stop()

    def stop(self) -> None:
        """End running and waiting requests, then the server, from any thread."""
        self._queue.is_ending = True
        self._server.should_exit = True
        self._host.stop()


@contextmanager
def answered_while_loading(
    listener: socket.socket,
    guard: Guard,
    log: AccessLog,
    limits: ClientLimits,
    doing: Callable[[], tuple[str, float]] = lambda: ("", 0.0),
) -> Iterator[None]:
    """Answer in a thread in the block, with what is `doing` and the share of it that is done.

    The listener stays open; whoever connects between this and the server that follows waits in the
    socket's queue.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        what, share = doing()
        words = f"the model is loading: {what}, {share:.0%}" if what else "the model is loading"
        refusal = overloaded(words, "loading")
        refusal.headers["Connection"] = "close"
        response = refused(refusal, scope)
        if "text/html" in Headers(scope=scope).get("accept", ""):  # a browser, which asks again
            text = static_file("loading.html").decode()
            text = text.replace("WHAT", escape(what)).replace("SHARE", f"{share:.2f}")
            response = Response(text, 503, refusal.headers, "text/html")
        await response(scope, receive, send)

    loading = Front(answer, guard, log)
    server = HttpServer(loading, limits, max_requests=0, shutdown_s=1)
    thread = threading.Thread(
        target=server.run, args=([listener.dup()],), name="edgespec-loading", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
