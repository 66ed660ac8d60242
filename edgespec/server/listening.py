"""An HTTP server on sockets that others have opened. Knows uvicorn, and no routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from edgespec.server.connections import ClientLimits, limited


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers and logs, which the command line has."""

    def __init__(
        self, app: ASGIApp, limits: ClientLimits, max_requests: int, shutdown_s: float
    ) -> None:
        """`max_requests` run or wait at once; at the end, they have `shutdown_s` seconds."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=math.ceil(shutdown_s),
                **limited(limits, max_requests),
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
