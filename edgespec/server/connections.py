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
from typing import Any

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
    crowded_s: float = 2
    """Seconds of these after which a connection whose request is not there makes way for another
    one, if there are too many."""
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
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=math.ceil(shutdown_s),
                **limited(limits, max_requests),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def limited(limits: ClientLimits, max_requests: int) -> dict[str, Any]:
    """Settings of uvicorn for `limits` and as many requests that run or wait at once."""
    attributes = {"limits": limits, "max_connections": max_requests + limits.connections}
    return {
        "http": type("Connection", (_Connection,), attributes),
        # uvicorn's own is 5 s, which is when clients such as httpx close theirs
        "timeout_keep_alive": limits.headers_s,
    }


class _Connection(H11Protocol):
    """uvicorn's connection, with a time limit on every wait for the client."""

    limits: ClientLimits
    max_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _NO_LOG
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._began_s = self.loop.time()
        """Time of the connection or of the last response."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports read 256 KiB
            transport.max_size = READ_BYTES
        if len(self.connections) > self.max_connections:
            self._longest_waiting().transport.abort()
        self._time_headers()

    def _longest_waiting(self) -> _Connection:
        """The connection that has waited longest for its client, or this one: those of a burst have
        waited for less than is long."""
        crowded = self.loop.time() - self.limits.crowded_s
        waiting = [
            one
            for one in self.connections
            if isinstance(one, _Connection) and one._waits_for_client and one._began_s < crowded
        ]
        found = min(waiting, key=lambda one: one._began_s, default=self)
        self.connections.discard(found)
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits_for_headers and self._reading is not None:
            self._reading.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_headers()

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

    def _time_headers(self) -> None:
        """Start the timer for headers; the application times bodies, as it can still respond."""
        if self._reading is not None:
            self._reading.cancel()
        self._began_s = self.loop.time()
        if self._waits_for_headers:
            self._reading = self.loop.call_later(self.limits.headers_s, self.transport.abort)

    @property
    def _waits_for_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _waits_for_client(self) -> bool:
        """True until the end of the next request's body."""
        return self._waits_for_headers or self.cycle.more_body
