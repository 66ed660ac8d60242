"""Error responses, the log of failures, and what the server remembers of them."""

from __future__ import annotations

import traceback

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.dialect import openai_error
from edgespec.completions.protocols.message_replies import messages_error
from edgespec.completions.protocols.response_replies import responses_error
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.server.access_log import AccessLog
from edgespec.server.ollama_routes import ollama_error

_BODIES = {"messages": messages_error, "responses": responses_error, "api": ollama_error}
"""Bodies of errors by the first part of a path, where they are not those of completions."""


def error_body(path: str, refusal: Refusal, request_id: str) -> Answer:
    """The body of an error response in the protocol that a path belongs to, with `/v1` or not."""
    first = path.removeprefix("/v1").lstrip("/").partition("/")[0]
    return _BODIES.get(first, openai_error)(refusal, request_id)


class Failures:
    """Turns exceptions into responses; logs those that are the server's own."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log
        self.loss: Refusal | None = None
        """The loss of the target, after which nothing can be answered."""

    def refusal_of(self, error: BaseException, request: Request) -> Refusal:
        """The error response; failures are logged, and the loss of the target is remembered."""
        refusal = refusal_of(error)
        if refusal.code == "target_lost":
            self.loss = detached(refusal)
        if refusal.status == 500 and refusal is not error:
            told = "".join(traceback.format_exception(error))
            self._log.failure(request.state.request_id, told)
        return refusal

    def refuse(self, error: BaseException, request: Request) -> Response:
        """The response to a request that failed with `error`."""
        refusal = self.refusal_of(error, request)
        content = error_body(request.scope["path"], refusal, request.state.request_id)
        return JSONResponse(content, refusal.status, refusal.headers)


def detached(refusal: Refusal) -> Refusal:
    """The refusal without its causes, whose frames keep the request in memory."""
    refusal.__cause__ = refusal.__context__ = refusal.__traceback__ = None
    return refusal
