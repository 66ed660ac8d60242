"""Runs the application on a socket until `stop`. Knows uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn

from edgespec.completions.service import Completions
from edgespec.memory import requests
from edgespec.server.application import Service
from edgespec.server.bodies import RequestBodies
from edgespec.server.connections import ClientLimits, Connections
from edgespec.server.guarding import Guard
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.session.session import Session

CLIENT_LIMITS = ClientLimits()
SHUTDOWN_S = 5
"""Seconds for clients to read the end of their responses at shutdown."""


class Server:
    """Serves one session at one address."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        model: str,
        max_waiting: int,
        max_prompt_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: ClientLimits = CLIENT_LIMITS,
    ) -> None:
        """`sampling` has defaults for requests; None: `session.chat_sampling`."""
        self.model = model
        self._session = session
        max_prompt_tokens = max_prompt_tokens or session.target.n_ctx
        if sampling is None:
            sampling = session.chat_sampling
        figures = ServerFigures()
        self._queue = Queue(max_waiting, session.n_parallel, session.pool_bytes)
        completions = Completions(
            session,
            model,
            max_prompt_tokens,
            sampling=sampling,
            max_logged_tokens=requests.max_answer_tokens,
            max_characters=requests.MAX_ANSWER_CHARACTERS,
            on_result=figures.count,
            n_at_once=self._queue.n_for_each,
            answer_bytes=requests.answer_bytes,
        )
        self.chat_refusal = completions.chat_refusal
        """Reason why the model cannot answer conversations; None if it can."""
        body_bytes = guard.max_body_bytes
        if body_bytes is None:
            body_bytes = requests.max_body_bytes(session.target.n_ctx)
        bodies = RequestBodies(body_bytes, requests.max_held_bytes(body_bytes), limits.body_s)
        service = Service(session, completions, guard, bodies, self._queue, figures)
        config = uvicorn.Config(
            service.application(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            http=Connections(limits, session.n_parallel + max_waiting).protocol(),
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        self._server = _Uvicorn(config)

    def run(self, listener: socket.socket) -> None:
        """Serve until `stop`. The caller closes the socket."""
        self._server.run(sockets=[listener])

    def stop(self) -> None:
        """End running and waiting requests, then the server, from any thread."""
        self._queue.is_ending = True
        self._server.should_exit = True
        self._session.cancel()


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers, which the command line installs."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
