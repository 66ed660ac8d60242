"""Serves models on a socket until it is stopped, and lets it end in an orderly way.

One event loop in a thread of its own, from before the first model is loaded.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import NoReturn

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.refusals import overloaded
from edgespec.completions.request_limits import (
    BODIES_AT_ONCE,
    EMBEDDING_BODY_BYTES,
    max_body_bytes,
)
from edgespec.completions.service import Completions
from edgespec.errors import Cancelled
from edgespec.ports import Progress
from edgespec.server.application import Service
from edgespec.server.connections import ClientLimits, HttpServer
from edgespec.server.front import Front, Log, refused
from edgespec.server.guarding import BudgetLimit, Guard
from edgespec.server.hosting import LoadedModel, ModelHost, ServedText
from edgespec.server.page import static_file
from edgespec.server.queueing import Queue, ServerFigures, Turns
from edgespec.session.embedder import Embedder
from edgespec.settings.config import ServerSettings

SHUTDOWN_S = 5
"""Seconds for clients to read the end of their responses at shutdown."""


@dataclass(eq=False)
class Server:
    """Serves one model, or several in turn, at one address.

    Until it has opened them, every request is told when to come again.
    """

    guard: Guard
    drain_s: float = 0
    """Seconds for which `drain` lets requests under way go on."""
    log: Log = lambda _: None
    limits: ClientLimits = field(default_factory=ClientLimits)
    doing: Callable[[], tuple[str, float]] = lambda: ("", 0.0)
    """Tells what is done until there is a model, and the share of it that is done."""

    def __post_init__(self) -> None:
        self._figures = ServerFigures()
        self._application: ASGIApp | None = None
        front = Front(self._answer, self.guard, self.log, self._figures)
        self._http = HttpServer(front, self.limits, SHUTDOWN_S + self.drain_s)

    def open(
        self,
        models: Sequence[HostedModel],
        first: LoadedModel | None,
        settings: ServerSettings,
        load: Callable[[HostedModel, Progress], LoadedModel] | None = None,
        max_tokens: int | None = None,
        on_budget: Callable[[int | str], None] = lambda _: None,
    ) -> None:
        """Answer with models from now on.

        `first` is the first of them, or None if none is loaded yet. The others are loaded by `load`
        when they are asked for, whose callback raises Cancelled once the server ends. `on_budget`
        is told a budget that a client has given. No answer has more than `max_tokens`.
        """
        figures, reasoning = self._figures, settings.reasoning_budget

        def served(model: HostedModel, loaded: LoadedModel) -> ServedText | LoadedModel:
            session = loaded.model
            if isinstance(session, Embedder):
                return loaded
            turns = Turns(session.n_parallel)
            completions = Completions(
                session,
                model.name,
                session.target.n_ctx,
                sampling=dict(loaded.sampling),
                max_tokens=max_tokens,
                serves=True,
                on_result=figures.count,
                n_at_once=partial(self._queue.n_for_each, turns),
                reasoning_budget=None if reasoning == -1 else reasoning,
                check_open=_refuse_cut,
            )
            return ServedText(session, completions, turns)

        def load_served(model: HostedModel, progress: Progress) -> ServedText | LoadedModel:
            assert load is not None
            return served(model, load(model, progress))

        self._host = host = ModelHost(models, load_served)
        body_bytes = settings.max_body
        if body_bytes is None:
            least = EMBEDDING_BODY_BYTES if any(one.embeds for one in models) else 0
            body_bytes = max(least, max_body_bytes(first.model.target.n_ctx if first else 0))
        self._queue = Queue(
            settings.queue,
            lambda: [one.served.turns for one in host.loaded if not one.embeds],
            body_bytes,
            BODIES_AT_ONCE * body_bytes,
            self.limits.body_s,
        )
        self.chat_refusal: str | None = None
        """Reason why the loaded model cannot answer conversations; None if it can."""
        budget = settings.max_budget or "auto"
        if first is not None:
            budget = settings.max_budget or first.model.plan.budget_bytes
            models[0].served = begun = served(models[0], first)
            if isinstance(begun, ServedText):
                self.chat_refusal = begun.completions.chat_refusal
        limit, max_s = BudgetLimit.of(budget), settings.time_limit
        service = Service(host, self._queue, self.guard, figures, limit, on_budget, max_s)
        self._http.config.limit_concurrency = settings.queue + self.limits.connections + 1
        self._application = service.application()

    @contextmanager
    def running(self, listener: socket.socket) -> Iterator[None]:
        """Serve in a thread, until the end of the block at the latest."""
        self._thread = threading.Thread(
            target=self._http.run, args=([listener],), name="edgespec-server"
        )
        self._thread.start()
        try:
            yield
        finally:
            self._http.should_exit = True
            self._thread.join()

    def wait(self) -> None:
        """Wait until `stop` or `drain` has ended the server."""
        self._thread.join()

    def close(self) -> None:
        """Close the models that are loaded. Idempotent."""
        self._host.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._application or await self._loading(scope))(scope, receive, send)

    async def _loading(self, scope: Scope) -> Response:
        what, share = self.doing()
        words = f"the model is loading: {what}, {share:.0%}" if what else "the model is loading"
        refusal = overloaded(words, "loading")
        if "text/html" in Headers(scope=scope).get("accept", ""):  # a browser, which asks again
            text = static_file("loading.html").decode()
            text = text.replace("WHAT", escape(what)).replace("SHARE", f"{share:.2f}")
            return Response(text, 503, refusal.headers, "text/html")
        return await refused(Request(scope), refusal)

    def drain(self) -> None:
        """Take no more requests, wait for those under way, and stop once their time is over.

        Called again, from any thread, it stops at once.
        """
        if not self._http.should_exit:
            self._http.should_exit = True
            self._thread.join(self.drain_s)
        self.stop()

    def stop(self) -> None:
        """End running and waiting requests, then the server, from any thread."""
        self._queue.is_ending = True
        self._http.should_exit = True
        self._host.stop()


def _refuse_cut() -> NoReturn:
    """Raise Cancelled for a text cut short: clients must not take it as complete."""
    raise Cancelled("the server is shutting down")
