"""An HTTP server on sockets that others have opened. Knows uvicorn, and no routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from edgespec.server.connections import Connections


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers and logs, which the command line has."""

    def __init__(self, app: ASGIApp, connections: Connections, shutdown_s: float) -> None:
        """At the end, requests under way have `shutdown_s` seconds."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                http=connections.protocol(),
                ws="none",
                timeout_graceful_shutdown=math.ceil(shutdown_s),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
