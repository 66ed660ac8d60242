"""Serves models on a socket until it is stopped, and lets it end in an orderly way.

One event loop in a thread of its own, from before the first model is loaded: uvicorn on a socket
that others have opened, with limits on connections and on waits for clients.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.refusals import overloaded
from edgespec.completions.request_limits import BODIES_AT_ONCE, max_body_bytes
from edgespec.completions.service import Completions
from edgespec.concurrency.owning import POLL_S
from edgespec.errors import Cancelled
from edgespec.ports import Progress
from edgespec.server.application import Service
from edgespec.server.front import Front, Log, refused
from edgespec.server.guarding import BudgetLimit, Guard
from edgespec.server.hosting import LoadedModel, ModelHost
from edgespec.server.queueing import Queue, ServerFigures, Turns
from edgespec.session.embedder import Embedder
from edgespec.settings.config import ServerSettings

SHUTDOWN_S = 5
"""Seconds for clients to read the end of their responses at shutdown."""
READ_BYTES = 32 << 10
"""Most bytes read at once from one connection; all connections may do so simultaneously."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for clients: number of connections and timeouts."""

    headers_s: float = 15
    """Seconds from the connection or the last response to the end of the next request's headers."""
    body_s: float = 60
    """Seconds from the headers to the end of the body."""
    answer_s: float = 60
    """Seconds for which a client may stop reading its response."""
    connections: int = 32
    """Most connections in addition to one for each request that may wait."""


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

        def served(model: HostedModel, loaded: LoadedModel) -> LoadedModel:
            session = loaded.model
            if isinstance(session, Embedder):
                return loaded
            loaded.turns = Turns(session.n_parallel)
            loaded.completions = Completions(
                session,
                model.name,
                session.target.n_ctx,
                sampling=dict(loaded.sampling),
                max_tokens=max_tokens,
                serves=True,
                on_result=figures.count,
                n_at_once=partial(self._queue.n_for_each, loaded.turns),
                reasoning_budget=None if reasoning == -1 else reasoning,
                check_open=_refuse_cut,
            )
            return loaded

        def load_served(model: HostedModel, progress: Progress) -> LoadedModel:
            assert load is not None
            return served(model, load(model, progress))

        self._host = host = ModelHost(models, load_served)
        n_ctx = first.model.target.n_ctx if first else 0
        body_bytes = max_body_bytes(n_ctx) if settings.max_body is None else settings.max_body
        self._queue = Queue(
            settings.queue,
            lambda: [one.served.turns for one in host.loaded if not one.embeds],
            body_bytes,
            BODIES_AT_ONCE * body_bytes,
            self.limits.body_s,
        )
        self.chat_refusal: str | None = None
        """Reason why the loaded model cannot answer conversations; None if it can."""
        budget = settings.max_budget or (first.model.plan.budget_bytes if first else "auto")
        if first is not None:
            models[0].served = begun = served(models[0], first)
            if begun.completions is not None:
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
        """Wait until `stop` or `drain` has ended the server, and hear signals meanwhile."""
        while self._thread.is_alive():
            self._thread.join(POLL_S)  # another thread may be the one that the system interrupts

    def close(self) -> None:
        """Close the models that are loaded. Idempotent."""
        self._host.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._application or await self._loading(scope))(scope, receive, send)

    async def _loading(self, scope: Scope) -> Response:
        what, share = self.doing()
        words = f"the model is loading: {what}, {share:.0%}" if what else "the model is loading"
        answer = await refused(Request(scope), overloaded(words, "loading"))
        answer.headers["Refresh"] = "1"  # a browser asks again each second, until the page is here
        return answer

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


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers and logs, which the command line has. Connections whose
    clients keep it waiting too long are closed."""

    def __init__(self, app: ASGIApp, limits: ClientLimits, shutdown_s: float) -> None:
        """At the end, requests have `shutdown_s` seconds."""
        super().__init__(
            uvicorn.Config(
                app,
                http=_Connection,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                limit_concurrency=limits.connections + 1,
                # uvicorn's own is 5 s, which is when clients such as httpx close theirs
                timeout_keep_alive=math.ceil(limits.headers_s),
                timeout_graceful_shutdown=math.ceil(shutdown_s),
            )
        )
        self._limits = limits
        self._waits: dict[object, tuple[tuple[object, ...], float]] = {}
        """State of each connection that waits for its client, and since when it has been so."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        before, self._waits, now_s = self._waits, {}, time.monotonic()
        for one in list(self.server_state.connections):
            assert isinstance(one, H11Protocol)
            is_idle = one.cycle is None or one.cycle.response_complete
            n_unsent = one.transport.get_write_buffer_size()
            state = one.cycle, is_idle, n_unsent
            known, since_s = before.get(one, (state, now_s))
            if is_idle or n_unsent:
                self._waits[one] = state, since_s if state == known else now_s
                limit_s = self._limits.answer_s if n_unsent else self._limits.headers_s
                if now_s - self._waits[one][1] > limit_s:
                    one.transport.abort()
        return await super().on_tick(counter)


class _Connection(H11Protocol):
    """uvicorn's connection, which reads little at once and is closed where there are too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # what uvicorn says about a client's mistakes would reach stderr unformatted
        self.logger = logging.Logger("edgespec.connections", logging.CRITICAL + 1)
        if hasattr(transport, "max_size"):  # asyncio's own transports read 256 KiB
            transport.max_size = READ_BYTES
        if self.limit_concurrency and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
