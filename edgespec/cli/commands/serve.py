"""`edgespec serve`: opens a socket and a session, and runs the server."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.cli.flags import chat_templates
from edgespec.cli.flags.serve import HOST, KEY_VARIABLE, PORT, QUEUE
from edgespec.cli.flags.values import read_text, whole
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import settings_from
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.server.guarding import Guard

MAX_KEY_BYTES = 64 << 10


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    with extras.needed("serve", "serving needs starlette and uvicorn"):
        from edgespec.server import running  # before loading, so that its memory is planned

    guard = _guard(args)
    template = chat_templates.template_from(args)
    max_waiting = whole("--queue", getattr(args, "queue", QUEUE))
    max_prompt = whole("--max-prompt", args.max_prompt) if "max_prompt" in args else None
    port = whole("--port", getattr(args, "port", PORT))
    console = Console(quiet="quiet" in args)
    with _listening(guard.host, port) as listener:
        args.spare_grammars = args.logprobs = True
        args.most_body_bytes = guard.max_body_bytes or 0
        with settings_from(args).opened(console, template) as loaded:
            server = running.Server(
                loaded,
                guard,
                getattr(args, "alias", None) or loaded.target.name,
                max_waiting,
                max_prompt,
            )
            address = _address(listener)
            console.note(
                f"{server.model} at {address}/v1, a page to chat at {address}/ (budget "
                f"{format_size(loaded.plan.budget_bytes)}); Ctrl-C ends it"
            )
            if server.chat_refusal is not None:
                console.note(f"no chat, only /v1/completions: {server.chat_refusal}")
            with interrupts.stopping(server.stop):
                server.run(listener)
    console.note("stopped")
    return 0


def _guard(args: argparse.Namespace) -> Guard:
    from edgespec.server.guarding import Guard

    return Guard(
        getattr(args, "host", HOST),
        _key(args),
        frozenset(name.lower() for name in getattr(args, "allowed_host", ())),
        parse_size(args.max_body, named="--max-body") if "max_body" in args else None,
    )


def _key(args: argparse.Namespace) -> str | None:
    if "api_key" in args and "api_key_file" in args:
        raise UsageError("give either --api-key or --api-key-file, not both")
    if "api_key_file" in args:
        return read_text("--api-key-file", Path(args.api_key_file), MAX_KEY_BYTES).strip()
    key: str | None = getattr(args, "api_key", os.environ.get(KEY_VARIABLE) or None)
    return key


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open a listening socket, before the model is loaded. Raises EdgespecError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise EdgespecError(
            f"cannot listen at {host}, port {port}: {error}; --port 0 takes a free one"
        ) from error
    with listener:
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
