"""Answers requests while the model is loading: status 503, and when to come again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from edgespec.completions.refusals import overloaded
from edgespec.server.access_log import AccessLog
from edgespec.server.connections import ClientLimits, HttpServer
from edgespec.server.front import Front
from edgespec.server.guarding import Guard


@contextmanager
def answered_while_loading(
    listener: socket.socket, guard: Guard, log: AccessLog, limits: ClientLimits
) -> Iterator[None]:
    """Answer in a thread in the block. The listener stays open; whoever connects between this and
    the server that follows waits in the socket's queue."""
    server = HttpServer(Front(_refuse, guard, log), limits, max_requests=0, shutdown_s=1)
    thread = threading.Thread(
        target=server.run, args=([listener.dup()],), name="edgespec-loading", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = overloaded("the model is loading", "loading")
    headers = refusal.headers | {"Connection": "close"}
    await JSONResponse(refusal.content, refusal.status, headers)(scope, receive, send)
