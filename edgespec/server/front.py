"""The front of a server: what every request passes before a route answers it, and at its end.

Names requests, checks hosts and origins, refuses in the protocol of the path, and reports each
request. Knows ASGI, and no models.
"""

from __future__ import annotations

import re
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.completions.answers import Answer, Usage
from edgespec.completions.protocols.message_replies import messages_error
from edgespec.completions.protocols.response_replies import responses_error
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.server.guarding import Guard
from edgespec.server.other_servers import ollama_error
from edgespec.server.queueing import ServerFigures

GONE = 499
"""Status in the log of a request whose client went away before the end of its response."""
MAX_ROUTE = 200
"""Most characters of a path in the log."""
UNLOGGED = frozenset({"/health", "/v1/health"})
"""Paths that are asked every few seconds."""
MAX_NAMES = 1000
"""Most ignored fields that are named in the log."""
_NO_HEADER = re.compile("[^ -~]")
_SLASHES = re.compile("/{2,}")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Request ids that clients may choose: visible ASCII."""
_BODIES = {"messages": messages_error, "responses": responses_error, "api": ollama_error}
"""Bodies of errors by the first part of a path, where they are not those of completions."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One request and how it was answered."""

    id: str
    """The `X-Request-Id` of the response."""
    client: str
    """Address of the client."""
    method: str
    route: str
    """Path as it was sent, percent-encoded, without its query."""
    status: int
    """HTTP status; 499 if the client went away before the end of the response."""
    seconds: float
    """Seconds from the headers of the request to the end of the response."""
    prompt_tokens: int | None = None
    """Tokens read; None if no model was asked."""
    completion_tokens: int | None = None
    """Tokens written; None if no model was asked."""
    ignored: Sequence[str] = ()
    """Names of fields that are ignored, each only in the first request that has it."""
    traceback: str = ""
    """Traceback of a failure of the server's own."""


Log = Callable[[AnsweredRequest], None]
"""Records a request at its end; of those to `/health` only failures."""


class Front:
    """An ASGI application in front of the one that answers."""

    def __init__(self, app: ASGIApp, guard: Guard, log: Log, figures: ServerFigures) -> None:
        self._app = app
        if guard.allowed_origins:
            self._app = CORSMiddleware(
                app,
                allow_origin_regex=guard.origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                allow_private_network=True,
                expose_headers=("X-Request-Id", "Retry-After", "X-Ignored-Fields"),
            )
        self._guard = guard
        self._log = log
        self._figures = figures
        self._known: set[str] = set()
        """Ignored fields that the log has."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun_s = time.monotonic()
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        given = headers.get("x-request-id", "")
        identity = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        state["request_id"] = identity
        ignored: list[str] = state.setdefault("ignored", [])
        added = dict.fromkeys(("X-Request-Id", "Request-Id"), identity)  # the latter is Anthropic's
        status, is_whole = GONE, False

        async def send_named(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                if ignored:
                    names = ", ".join(ignored).encode("ascii", "backslashreplace")[:MAX_ROUTE]
                    added["X-Ignored-Fields"] = _NO_HEADER.sub("", names.decode()).strip()
                MutableHeaders(scope=message).update(added)
            else:
                is_whole = not message.get("more_body", False)
            await send(message)

        path = _SLASHES.sub("/", scope["path"])  # clients join addresses by hand
        inner = {**scope, "path": path if path == "/" else path.removesuffix("/")}
        try:
            self._guard.check_host(headers)
            self._guard.check_origin(headers)
            await self._app(inner, receive, send_named)
        except Exception as error:
            if status == GONE:
                response = await refused(Request(scope), error)
                await response(scope, receive, send_named)
            elif not is_whole:  # Starlette raises errors again behind their responses
                refusal_for(error, scope)
                raise
        finally:
            self._report(scope, status if is_whole else GONE, time.monotonic() - begun_s)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        state: dict[str, Any] = scope["state"]
        answered = f'answers_total{{status="{status}"}}'
        self._figures.totals["clients_gone_total" if status == GONE else answered] += 1
        refusal: Refusal | None = state.get("refusal")
        if refusal is not None and refusal.code == "target_lost":
            self._figures.loss = refusal
        told: str = state.get("traceback", "")
        if scope["path"] in UNLOGGED and not told:
            return
        names = (name[:MAX_ROUTE] for name in state["ignored"])
        new = [name for name in names if name not in self._known][: MAX_NAMES - len(self._known)]
        self._known |= {*new}
        usage: Usage | None = state.get("usage")
        self._log(
            AnsweredRequest(
                state["request_id"],
                (scope.get("client") or ("",))[0],
                scope["method"],
                scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:MAX_ROUTE],
                status,
                seconds,
                None if usage is None else usage.prompt_tokens,
                None if usage is None else usage.completion_tokens,
                new,
                told,
            )
        )


def refusal_for(error: Exception, scope: Scope) -> Refusal:
    """The refusal that answers an error, without its causes, whose frames keep the request in
    memory. The traceback of a failure of the server's own is kept for the log."""
    if isinstance(error, HTTPException):  # of a path or a method that there is not
        code, headers = error.detail.lower().replace(" ", "_"), dict(error.headers or {})
        message = f"{scope['method']} {scope['path']}: {error.detail}"
        refusal = Refusal(error.status_code, message, code=code, headers=headers)
    else:
        refusal = refusal_of(error)
    if refusal.status == 500 and refusal is not error:
        scope["state"]["traceback"] = "".join(traceback.format_exception(error))
    refusal.__cause__ = refusal.__context__ = refusal.__traceback__ = None
    scope["state"]["refusal"] = refusal
    return refusal


def error_body(refusal: Refusal, scope: Scope) -> Answer:
    """The body of an error response in the protocol that the path belongs to, with `/v1` or not."""
    first = scope["path"].removeprefix("/v1").lstrip("/").partition("/")[0]
    told = _BODIES.get(first)
    return told(refusal, scope["state"]["request_id"]) if told else refusal.content


async def refused(request: Request, error: Exception) -> Response:
    """The response to a request that failed with `error`."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=GONE)
    refusal = refusal_for(error, request.scope)
    return JSONResponse(error_body(refusal, request.scope), refusal.status, refusal.headers)
