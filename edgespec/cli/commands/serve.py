"""`edgespec serve`: opens a socket, answers 503 while a session opens, and runs the server."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec import extras
from edgespec.cli.commands.request_log import RequestLog
from edgespec.cli.console import Console
from edgespec.cli.flags import chat_templates
from edgespec.cli.flags.serve import DRAIN_S, HOST, KEY_VARIABLE, PORT, QUEUE
from edgespec.cli.flags.values import number, read_text, whole
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import settings_from
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings.config import GenerateSettings, Sampling
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.server.guarding import Guard

MAX_KEY_BYTES = 64 << 10
DAY_S = 24 * 3600


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM, and let requests under way end."""
    with extras.needed("serve", "serving needs starlette and uvicorn"):
        from edgespec.server import loading, running  # first, so that their memory is planned

    guard = _guard(args)
    template = chat_templates.template_from(args)
    max_waiting = whole("--queue", getattr(args, "queue", QUEUE))
    max_prompt = whole("--max-prompt", args.max_prompt) if "max_prompt" in args else None
    port = whole("--port", getattr(args, "port", PORT))
    max_s = number("--time-limit", args.time_limit, 0, DAY_S) if "time_limit" in args else None
    drain_s = number("--drain", getattr(args, "drain", DRAIN_S), 0, DAY_S)
    console = Console(quiet="quiet" in args)
    log = RequestLog(console, is_json="log_json" in args, quiet="quiet" in args)
    name = _name(args)
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(guard.host, port))
        args.spare_grammars = args.logprobs = True
        args.most_body_bytes = guard.max_body_bytes or 0
        with loading.answered_while_loading(listener, guard, log, running.CLIENT_LIMITS):
            settings = settings_from(args)
            loaded = stack.enter_context(settings.opened(console, template))
            server = running.Server(
                loaded,
                guard,
                name or loaded.target.name,
                max_waiting,
                max_prompt,
                sampling=_sampling(settings.generate, loaded.chat_sampling),
                answer_limits=running.AnswerLimits(_max_tokens(settings.generate), max_s),
                log=log,
                drain_s=drain_s,
            )
        address = _address(listener)
        console.note(
            f"{server.model} at {address}/v1, a page to chat at {address}/ (budget "
            f"{format_size(loaded.plan.budget_bytes)}); Ctrl-C ends it"
        )
        if server.chat_refusal is not None:
            console.note(f"no chat, only /v1/completions: {server.chat_refusal}")
        with interrupts.stopping(server.drain):
            server.run(listener)
    console.note("stopped")
    return 0


def _name(args: argparse.Namespace) -> str | None:
    """The model's name as it was typed; None for the pair that comes with edgespec."""
    if "alias" in args:
        return str(args.alias)
    if "hf_repo" in args:
        return str(args.hf_repo)
    typed = getattr(args, "model", None)
    return None if typed is None else Path(typed).name


def _sampling(settings: GenerateSettings, recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of requests: what flags and the file say, otherwise what is recommended."""
    told = settings.model_fields_set & {*Sampling.model_fields, "seed"}
    given = {name: getattr(settings, name) for name in told}
    return {**recommended, **{name: value for name, value in given.items() if value is not None}}


def _max_tokens(settings: GenerateSettings) -> int | None:
    """The limit of every answer; none unless it was asked for."""
    return settings.limit if "max_tokens" in settings.model_fields_set else None


def _guard(args: argparse.Namespace) -> Guard:
    from edgespec.server.guarding import Guard

    return Guard(
        getattr(args, "host", HOST),
        _key(args),
        frozenset(name.lower() for name in getattr(args, "allowed_host", ())),
        parse_size(args.max_body, named="--max-body") if "max_body" in args else None,
        frozenset(origin.lower().rstrip("/") for origin in getattr(args, "allowed_origin", ())),
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
