"""Limits the number of connections and the time that the server waits for clients.

Knows uvicorn's protocol class, and nothing of requests and responses.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal

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
    """Connections in addition to one for each running or waiting request."""


class Connections:
    """The connections of one server.

    Above their limit each new one closes one that waits for its client: the one that has waited
    longest, connections that send a body last.
    """

    def __init__(self, limits: ClientLimits, max_requests: int) -> None:
        self.limits = limits
        self._limit = max_requests + limits.connections
        self._open: set[Connection] = set()

    def protocol(self) -> type[asyncio.Protocol]:
        """The class that uvicorn instantiates for every connection."""
        return type("Connection", (Connection,), {"others": self})

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        if len(self._open) > self._limit:
            waiting = [other for other in self._open if other.waits_for]
            victim = min(waiting, key=lambda other: other.rank(connection))
            self._open.discard(victim)
            victim.transport.abort()

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)


class Connection(H11Protocol):
    """uvicorn's connection, with a time limit on every wait for the client."""

    others: Connections

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _NO_LOG
        self.waits_for: Literal["headers", "body"] | None = None
        """The part of a request that is due from the client; None while the server responds."""
        self._since_s = 0.0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def rank(self, newest: Connection) -> tuple[bool, bool, float]:
        """Sort key; the connection with the lowest is closed first."""
        return self is newest, self.waits_for == "body", self._since_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports read 256 KiB
            transport.max_size = READ_BYTES
        self._restart_timers()
        self.others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.discard(self)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._notice_turn()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart_timers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.others.limits.answer_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _should_upgrade(self) -> bool:
        """HTTP/1.1 alone is spoken here: offers of other protocols are ignored, as RFC 9110 has it,
        and without uvicorn's advice to install libraries."""
        return False

    def _notice_turn(self) -> None:
        """Restart the timers if the last bytes have changed `waits_for`."""
        if self._state != self.waits_for:
            self._restart_timers()

    def _restart_timers(self) -> None:
        """Restart the timer for headers; the application times bodies, as it can still respond."""
        self.waits_for = self._state
        self._since_s = self.loop.time()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self.waits_for == "headers":
            self._reading = self.loop.call_later(self.others.limits.headers_s, self.transport.abort)

    @property
    def _state(self) -> Literal["headers", "body"] | None:
        if self.cycle is None or self.cycle.response_complete:
            return "headers"
        return "body" if self.cycle.more_body else None
