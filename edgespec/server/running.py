"""Serves a session on a socket until it is stopped, and lets it end in an orderly way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.completions.answers import fingerprint
from edgespec.completions.service import Completions
from edgespec.memory import requests
from edgespec.server.access_log import AccessLog, NoLog
from edgespec.server.application import Service
from edgespec.server.bodies import RequestBodies
from edgespec.server.connections import ClientLimits
from edgespec.server.front import Front
from edgespec.server.guarding import Guard
from edgespec.server.listening import HttpServer
from edgespec.server.queueing import Queue, ServerFigures
from edgespec.session.session import Session

CLIENT_LIMITS = ClientLimits()
SHUTDOWN_S = 5
"""Seconds for clients to read the end of their responses at shutdown."""
DRAIN_S = 30.0
"""Default seconds that requests under way have once the server is told to end."""


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
        answer_limits: AnswerLimits = NO_LIMITS,
        log: AccessLog | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        """`sampling` has defaults for requests; None: `session.chat_sampling`. `drain` lets
        requests under way go on for `drain_s` seconds."""
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
            max_tokens=answer_limits.max_tokens,
            fingerprint=fingerprint(session.target),
            max_logged_tokens=requests.max_answer_tokens,
            max_characters=requests.MAX_ANSWER_CHARACTERS,
            on_result=figures.count,
            n_at_once=self._queue.n_for_each,
            answer_bytes=requests.answer_bytes,
            writes_ahead=True,
            reasoning_budget=answer_limits.reasoning_tokens,
        )
        self.chat_refusal = completions.chat_refusal
        """Reason why the model cannot answer conversations; None if it can."""
        body_bytes = guard.max_body_bytes
        if body_bytes is None:
            body_bytes = requests.max_body_bytes(session.target.n_ctx)
        bodies = RequestBodies(body_bytes, requests.max_held_bytes(body_bytes), limits.body_s)
        log = log or NoLog()
        service = Service(
            session, completions, guard, bodies, self._queue, figures, log, answer_limits.max_s
        )
        self._drain_s = drain_s
        self._is_over = threading.Event()
        """Set once the server has ended, or must end now."""
        self._server = HttpServer(
            Front(service.application(), guard, log, figures.answers),
            limits,
            session.n_parallel + max_waiting,
            SHUTDOWN_S + drain_s,
        )

    def run(self, listener: socket.socket) -> None:
        """Serve until `stop` or `drain`. The caller closes the socket."""
        try:
            self._server.run(sockets=[listener])
        finally:
            self._is_over.set()

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
        self._session.cancel()
