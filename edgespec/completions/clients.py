"""The client whose request is being read: its texts stay apart from those of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CLIENT: ContextVar[str] = ContextVar("client", default="")


def current_client() -> str:
    """Name of the client whose request is being read; empty if clients have no names."""
    return _CLIENT.get()


@contextmanager
def asked_by(client: str) -> Iterator[None]:
    """Context manager in which requests are read that `client` has sent."""
    token = _CLIENT.set(client)
    try:
        yield
    finally:
        _CLIENT.reset(token)
