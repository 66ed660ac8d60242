"""Receives request bodies within limits on size, total size and time.

Knows bytes, and nothing of their meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from edgespec.completions.refusals import Refusal, overloaded


class RequestBodies:
    """Bodies of requests that arrive or wait for their turn, of `max_bytes` together."""

    def __init__(self, max_body_bytes: int, max_bytes: int, patience_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._free_bytes = max_bytes
        self._patience_s = patience_s

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
        body = bytearray()
        try:
            await self._receive(request, body)
            yield body
        finally:
            self._free_bytes += len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                async for part in request.stream():
                    self._check_size(len(body) + len(part))
                    if len(part) > self._free_bytes:
                        raise overloaded("requests under way have all memory for bodies", "no_room")
                    self._free_bytes -= len(part)
                    body += part
        except TimeoutError:
            message = f"the body did not come within {self._patience_s:g} s"
            raise Refusal(408, message, code="body_too_slow") from None

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._max_body_bytes:
            raise Refusal(
                413,
                f"the body has more than {self._max_body_bytes:,} bytes: send less, or start the "
                "server with max-body in its --config file",
                code="too_large",
            )
