"""`edgespec serve`: flags, a socket, a session and the server between them."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli import chat_templates
from edgespec.cli.console import Console
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import engine_settings, settings_from
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.regular import read_regular
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.server.guarding import Guard

HOST, PORT = "127.0.0.1", 8080
QUEUE = 32
KEY_VARIABLE = "EDGESPEC_API_KEY"
MOST_KEY_BYTES = 64 << 10

DESCRIPTION = """\
Answer requests in the shape of OpenAI's API, one at a time; others wait in line. A small page to
chat is at /, figures for Prometheus are at /metrics."""

EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --memory-budget 4GiB
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  edgespec serve -hf USER/REPO --host 0.0.0.0 --api-key-file key.txt

It is reached from this machine only, unless --host says otherwise; then it wants a key. What a
request does not say about sampling is as the model's makers recommend, otherwise temperature 0.8,
top_k 40, top_p 0.95 and min_p 0.05, as llama.cpp has it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    chat_templates.add_flags(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", metavar="ADDRESS", help=f"(default: {HOST})")
    group.add_argument("--port", metavar="N", help=f"0 takes a free one (default: {PORT})")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients must send; others see a flag, so better --api-key-file or "
        f"{KEY_VARIABLE} in the environment",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="likewise, from a file")
    group.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        help="another name by which clients may call this machine; may be repeated",
    )
    group.add_argument("--alias", metavar="NAME", help="what the model is called in answers")
    group.add_argument(
        "--queue",
        metavar="N",
        help=f"requests that may wait; who comes then gets 429 (default: {QUEUE})",
    )
    group.add_argument(
        "--max-body",
        metavar="SIZE",
        help="of a request; the plan keeps memory for it (default: 64 KiB and 16 bytes for each "
        "token of the context)",
    )
    group.add_argument(
        "--max-prompt", metavar="N", help="tokens of a prompt (default: the context)"
    )


def run_serve(given: argparse.Namespace, interrupts: Interrupts) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    with extras.needed("serve", "serving needs starlette and uvicorn"):
        from edgespec.server import running  # before loading: its memory is counted then
    from edgespec.session import session

    guard = _guard(given)
    template = chat_templates.template_from(given)
    most_waiting = _whole(given, "queue", QUEUE)
    most_prompt = _whole(given, "max_prompt", None)
    console = Console(quiet="quiet" in given)
    with _listening(guard.host, _whole(given, "port", PORT) or 0) as listener:
        given.grammars = given.logprobs = True
        given.most_body_bytes = guard.most_body_bytes or 0
        request = settings_from(given)
        for note in request.notes:
            console.note(note)
        with session.load(
            request.load, engine_settings(request.generate), console.progress
        ) as loaded:
            console.end_of_progress()
            if template is not None:
                loaded.use_chat_template(template)
            server = running.Server(
                loaded,
                guard,
                getattr(given, "alias", None) or loaded.target.name,
                QUEUE if most_waiting is None else most_waiting,
                most_prompt,
            )
            address = _address(listener)
            console.note(
                f"{server.model} at {address}/v1, a page to chat at {address}/ (budget "
                f"{format_size(loaded.plan.budget_bytes)}); Ctrl-C ends it"
            )
            try:
                loaded.chat_prompt([{"role": "user", "content": "Hello"}])
            except EdgespecError as error:
                console.note(f"no chat, only /v1/completions: {error}")
            with interrupts.stopping(server.stop):
                server.run(listener)
    console.note("stopped")


def _guard(given: argparse.Namespace) -> Guard:
    from edgespec.server.guarding import Guard

    return Guard(
        getattr(given, "host", HOST),
        _key(given),
        frozenset(name.lower() for name in getattr(given, "allowed_host", ())),
        parse_size(given.max_body, named="--max-body") if "max_body" in given else None,
    )


def _key(given: argparse.Namespace) -> str | None:
    if "api_key" in given and "api_key_file" in given:
        raise UsageError("--api-key and --api-key-file contradict each other: give one of them")
    if "api_key_file" in given:
        path = Path(given.api_key_file)
        try:
            return read_regular(path, MOST_KEY_BYTES).decode().strip()
        except OSError as error:
            raise UsageError(f"--api-key-file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"--api-key-file {path}: not UTF-8") from error
    key: str | None = getattr(given, "api_key", os.environ.get(KEY_VARIABLE) or None)
    return key


def _whole(given: argparse.Namespace, name: str, default: int | None) -> int | None:
    text = getattr(given, name, None)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"--{name.replace('_', '-')} {text}: it must be a whole number, 0 or more")
    return int(text)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens before a model is loaded in vain. Raises EdgespecError."""
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
