"""Records of requests, for whoever keeps a log of a server. Writes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


class AccessLog:
    """A log that keeps nothing, for others to override; any thread may call it."""

    def request(self, answered: AnsweredRequest) -> None:
        """Record a request at its end."""

    def left_out(self, request_id: str, names: Sequence[str]) -> None:
        """Record fields of a request that are ignored, each name once."""

    def failure(self, request_id: str, traceback: str) -> None:
        """Record the traceback of a request that is answered with status 500."""
