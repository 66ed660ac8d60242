"""Receives request bodies within limits on size, total size and time.

Knows bytes, and nothing of their meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from edgespec.completions.refusals import Refusal, overloaded


@dataclass(eq=False, slots=True)
class _Body:
    content: bytearray
    time: asyncio.Timeout | None
    """Time limit; None once the body is complete."""
    is_evicted: bool = False


class RequestBodies:
    """Bodies of requests that arrive or wait for their turn, of `max_bytes` together.

    If there is no room, the incomplete body that has been arriving longest is evicted.
    """

    def __init__(self, max_body_bytes: int, max_bytes: int, patience_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._bodies: list[_Body] = []
        """Bodies in memory, oldest first."""

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytearray]:
        """Receive the body of a request; its bytes count until the block ends.

        Raises Refusal if it is compressed, too large or too slow, or if there is no room.
        """
        coding = request.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            message = f"the body has the Content-Encoding {coding!r}: send it as it is"
            raise Refusal(415, message, code="unsupported_encoding")
        announced = request.headers.get("content-length", "0")
        self._check_size(int(announced) if announced.isdecimal() else 0)
        body = _Body(bytearray(), None)
        self._bodies.append(body)
        try:
            async with self._in_time(body):
                async for part in request.stream():
                    self._check_size(len(body.content) + len(part))
                    self._make_room(body, len(part))
                    body.content += part
            yield body.content
        finally:
            self._bodies.remove(body)

    @asynccontextmanager
    async def _in_time(self, body: _Body) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._patience_s) as body.time:
                yield
        except TimeoutError:
            if body.is_evicted:
                raise self._no_room from None
            message = f"the body did not come within {self._patience_s:g} s"
            raise Refusal(408, message, code="body_too_slow") from None
        finally:
            body.time = None

    def _make_room(self, body: _Body, n_bytes: int) -> None:
        held = sum(len(other.content) for other in self._bodies)
        for other in list(self._bodies):
            if held + n_bytes <= self._max_bytes:
                return
            if other is not body and other.time is not None and not other.time.expired():
                held -= len(other.content)
                other.content.clear()
                other.is_evicted = True
                other.time.reschedule(0)
                other.time = None
        if held + n_bytes > self._max_bytes:
            raise self._no_room

    @property
    def _no_room(self) -> Refusal:
        return overloaded(
            f"requests under way have {self._max_bytes:,} bytes, which is as much as this server "
            "takes",
            "no_room",
        )

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._max_body_bytes:
            raise Refusal(
                413,
                f"the body has more than {self._max_body_bytes:,} bytes: send less, or start the "
                "server with max-body in its --config file",
                code="too_large",
            )
