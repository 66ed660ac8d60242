"""Converts exceptions to error responses in OpenAI's format: status and body."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.errors import (
    BudgetError,
    Cancelled,
    ContextOverflow,
    EdgespecError,
    GrammarError,
    SessionClosed,
    TargetLost,
    UsageError,
    marked,
)
from edgespec.settings.base import in_flags

RETRY_AFTER_S = 5
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


@dataclass(eq=False)
class Refusal(Exception):
    """An error with its HTTP status and response body."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    """Further fields of the error."""

    def __str__(self) -> str:
        return self.message

    @property
    def content(self) -> dict[str, Any]:
        """The body in OpenAI's format."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _KINDS.get(self.status, usual)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error | self.figures}


def overloaded(reason: str, code: str) -> Refusal:
    """Refusal of a request that the client may retry later."""
    told = f"{reason}: try again in {RETRY_AFTER_S} s"
    return Refusal(503, told, code, headers={"Retry-After": str(RETRY_AFTER_S)})


def refusal_of(error: BaseException) -> Refusal:
    """The error response for an exception; unexpected ones are server errors."""
    told = in_flags(marked(error))
    match error:
        case Refusal():
            return error
        case SessionClosed() | Cancelled():
            return Refusal(503, "the server is shutting down", code="shutting_down")
        case RequestError():
            return Refusal(400, told, error.code, error.param, figures=error.figures)
        case ContextOverflow():
            figures: dict[str, Any] = {"n_prompt_tokens": error.n_prompt_tokens}
            figures |= {"n_ctx": error.n_ctx, "type": "exceed_context_size_error"}  # llama.cpp's
            code = "context_length_exceeded"  # OpenAI's
            return Refusal(400, told, code, error.param, figures=figures)
        case GrammarError():
            return Refusal(400, str(error), code="invalid_grammar", param="response_format")
        case BudgetError():
            figures = {"smallest_bytes": error.smallest_bytes} if error.smallest_bytes else {}
            return Refusal(400, told, code="budget_too_small", figures=figures)
        case UsageError():
            return Refusal(400, str(error))
        case TargetLost():
            return Refusal(503, str(error), code="target_lost")
        case EdgespecError():
            return Refusal(500, told)
        case _:
            return Refusal(500, f"unexpected {type(error).__name__}: {error}")


def decoded(data: bytes | bytearray, named: str = "the body") -> Any:
    """The JSON value in `data`. Raises Refusal, which calls it `named`, if it is invalid."""
    try:
        return from_json(data.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"{named} is not JSON: {error}") from error
