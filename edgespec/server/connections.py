"""An HTTP server on sockets that others have opened, with limits for its clients.

Limits the number of connections and the time that the server waits. Knows uvicorn, and nothing of
requests and responses.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
    """Most connections in addition to one for each running or waiting request."""


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers and logs, which the command line has."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ClientLimits,
        max_requests: int,
        shutdown_s: float,
    ) -> None:
        """`max_requests` run or wait at once; at the end, they have `shutdown_s` seconds."""
        most = {"limits": limits, "max_connections": max_requests + limits.connections}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Connection", (_Connection,), most),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                # uvicorn's own is 5 s, which is when clients such as httpx close theirs
                timeout_keep_alive=limits.headers_s,  # type: ignore[arg-type]
                timeout_graceful_shutdown=math.ceil(shutdown_s),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """uvicorn's connection, with a time limit on every wait for the client.

    uvicorn's own limit of silence between requests holds for the first one, too, and until the end
    of the headers.
    """

    limits: ClientLimits
    max_connections: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _NO_LOG
        self._writing: asyncio.TimerHandle | None = None
        if hasattr(transport, "max_size"):  # asyncio's own transports read 256 KiB
            transport.max_size = READ_BYTES
        if len(self.connections) > self.max_connections:
            transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, without waiting for a client that reads nothing."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self.timeout_keep_alive_task = self.timeout_keep_alive_task or timer
        elif timer is not None:
            timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _should_upgrade(self) -> bool:
        """HTTP/1.1 alone is spoken here: offers of other protocols are ignored, as RFC 9110 has it,
        and without uvicorn's advice to install libraries."""
        return False
