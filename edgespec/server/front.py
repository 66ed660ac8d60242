"""The front of a server: what every request passes before a route answers it.

Names requests, checks hosts and origins, and reports each request at its end.
Knows ASGI, and no models.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import traceback
from collections import Counter
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.completions.answers import Usage
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.server.access_log import AccessLog, AnsweredRequest
from edgespec.server.failures import error_body
from edgespec.server.guarding import LOCAL, LOCAL_ORIGIN, Guard

GONE = 499
"""Status in the log of a request whose client went away before the end of its response."""
MAX_ROUTE = 200
"""Most characters of a path in the log."""
DROP_S = 5.0
"""Most seconds for which the rest of a body is read before a refusal."""
UNLOGGED = frozenset({"/health", "/v1/health"})
"""Paths that are asked every few seconds."""
BAD_REQUEST = 400
"""The lowest status of a refusal."""
MAX_NAMES = 1000
"""Most ignored fields that are named in the log."""
_NO_HEADER = re.compile("[^ -~]")
_SLASHES = re.compile("/{2,}")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Request ids that clients may choose: visible ASCII."""


class Front:
    """An ASGI application in front of the one that answers."""

    def __init__(
        self, app: ASGIApp, guard: Guard, log: AccessLog, answers: Counter[int] | None = None
    ) -> None:
        """`answers` counts responses by status."""
        self._app = app
        if guard.allowed_origins:
            self._app = CORSMiddleware(
                app,
                guard.allowed_origins,
                allow_origin_regex=LOCAL_ORIGIN.pattern if LOCAL in guard.allowed_origins else None,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                allow_private_network=True,
                expose_headers=("X-Request-Id", "Retry-After", "X-Ignored-Fields"),
            )
        self._guard = guard
        self._log = log
        self._answers = Counter() if answers is None else answers
        self._left_out: set[str] = set()
        """Names of fields of requests that the log has as ignored."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun_s = time.monotonic()
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = identity = _request_id(headers)
        left_out: list[str] = state.setdefault("left_out", [])
        added = dict.fromkeys(("X-Request-Id", "Request-Id"), identity)  # the latter is Anthropic's
        status = GONE
        sends_body = headers.get("expect", "").lower() != "100-continue"

        async def receive_noted() -> Message:
            nonlocal sends_body
            message = await receive()
            sends_body = message.get("more_body", False)
            return message

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if left_out:
                    names = ", ".join(left_out).encode("ascii", "backslashreplace")[:MAX_ROUTE]
                    added["X-Ignored-Fields"] = _NO_HEADER.sub("", names.decode()).strip()
                MutableHeaders(scope=message).update(added)
                if sends_body and status >= BAD_REQUEST:
                    await _drop(receive_noted)
            await send(message)

        def report(*_: object) -> None:
            self._report(scope, state, GONE if state.get("is_gone") else status, begun_s)

        try:
            await self._answer(scope, headers, receive_noted, send_named)
        except Exception as error:
            self._log.failure(identity, "".join(traceback.format_exception(error)))
            if status != GONE:
                raise
            await refused(refusal_of(error), scope)(scope, receive, send_named)
        finally:
            # the tokens of a cancelled request are known once it is closed
            closing: asyncio.Future[None] | None = state.get("closing")
            if closing is None or closing.done():
                report()
            else:
                closing.add_done_callback(report)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        try:
            self._guard.check_host(headers)
            self._guard.check_origin(headers)
        except Refusal as refusal:
            await refused(refusal, scope)(scope, receive, send)
            return
        path = _SLASHES.sub("/", scope["path"])  # clients join addresses by hand
        scope = {**scope, "path": path if path == "/" else path.removesuffix("/")}
        await self._app(scope, receive, send)

    def _report(
        self, scope: Scope, state: MutableMapping[str, Any], status: int, begun_s: float
    ) -> None:
        if status != GONE:
            self._answers[status] += 1
        if scope["path"] in UNLOGGED:
            return
        new = [name for name in state["left_out"] if name[:MAX_ROUTE] not in self._left_out]
        if new := [name[:MAX_ROUTE] for name in new[: MAX_NAMES - len(self._left_out)]]:
            self._left_out |= {*new}
            self._log.left_out(state["request_id"], new)
        usage: Usage | None = state.get("usage")
        client = scope.get("client")
        self._log.request(
            AnsweredRequest(
                state["request_id"],
                client[0] if client else "",
                scope["method"],
                scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:MAX_ROUTE],
                status,
                time.monotonic() - begun_s,
                None if usage is None else usage.prompt_tokens,
                None if usage is None else usage.completion_tokens,
            )
        )


async def _drop(receive: Receive) -> None:
    """Read and drop what the client still sends: if its connection broke meanwhile, it would not
    see its refusal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DROP_S):
            while (await receive()).get("more_body", False):
                pass


def refused(refusal: Refusal, scope: Scope) -> Response:
    """The error response to a request that `Front` has named."""
    content = error_body(scope["path"], refusal, scope["state"]["request_id"])
    return JSONResponse(content, refusal.status, refusal.headers)


def _request_id(headers: Headers) -> str:
    """The client's `X-Request-Id`, or a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
