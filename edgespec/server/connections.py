"""uvicorn on sockets that others have opened, with limits on connections and on waits for clients.

Knows nothing of requests and responses.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

READ_BYTES = 32 << 10
"""Most bytes read at once from one connection; all connections may do so simultaneously."""
_NO_LOG = logging.Logger("edgespec.connections", logging.CRITICAL + 1)
"""Receives what uvicorn says about a client's mistakes, which would reach stderr unformatted."""


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
                limit_s = self._limits.headers_s if is_idle else self._limits.answer_s
                if now_s - self._waits[one][1] > limit_s:
                    one.transport.abort()
        return await super().on_tick(counter)


class _Connection(H11Protocol):
    """uvicorn's connection, which reads little at once and is closed where there are too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _NO_LOG
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
