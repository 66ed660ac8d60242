"""`edgespec serve`: opens a socket, answers 503 while a session opens, and runs the server."""

from __future__ import annotations

import argparse
import json
import os
import socket
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import read_text, template_from
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, server_settings, settings_from
from edgespec.cli.model_list import PARALLEL, ModelList, for_requests, is_one
from edgespec.errors import EdgespecError, UsageError, marked, setting
from edgespec.files import cache_folder
from edgespec.memory import process
from edgespec.settings.config import GenerateSettings, Sampling, ServerSettings
from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.completions.protocols.model_names import HostedModel
    from edgespec.ports import Progress
    from edgespec.server.front import AnsweredRequest
    from edgespec.server.guarding import Guard
    from edgespec.server.hosting import LoadedModel


KEY_VARIABLE = "EDGESPEC_API_KEY"
MAX_KEY_BYTES = 64 << 10

_DESCRIPTION = """\
Run an HTTP server with OpenAI's API. As many requests as -np says are answered at once, others wait
in line. A small chat page is at /, metrics for Prometheus are at /metrics. While the model loads,
the answer is 503. Each request is one line on stderr. Of several models, which share one memory
budget, the one that a request names is loaded for it; embedding models answer /v1/embeddings."""

_EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --memory-budget 4GiB
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
  edgespec serve -m chat.gguf -m other.gguf -m embedding.gguf --memory-budget 4GiB
  edgespec serve -hf USER/REPO --host 0.0.0.0 --api-key-file key.txt

By default only this machine can connect; another --host needs an API key. Sampling settings that a
request leaves out are those of the flags, otherwise those that the model's makers recommend,
otherwise llama.cpp's: temperature 0.8, top_k 40, top_p 0.95 and min_p 0.05."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser, several=True)
    groups.add_memory(parser)
    groups.add_parallel(parser, PARALLEL)
    groups.add_sampling(parser, serves=True)
    groups.add_texts(parser)
    groups.add_chat_template(parser)
    group = parser.add_argument_group("server")
    groups.add(group, ServerSettings)
    groups.flag(group, "--quiet", "print no notes, progress or requests")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM, and let requests under way end."""
    with extras.needed("serve", "serving needs starlette and uvicorn"):
        from edgespec.server import lifetime  # first, so that its memory is planned

    told = server_settings(args)
    guard = _guard(told)
    template = template_from(args)
    console = Console(quiet="quiet" in args)
    log = partial(log_request, console, told.log_json, "quiet" in args)
    with ExitStack() as stack:
        listener = stack.enter_context(_listener(guard.host, told.port))
        args.keeps_one_text_fast = True
        args.body_bytes = told.max_body or 0
        server = lifetime.Server(guard, told.drain, log, doing=lambda: console.doing)
        stack.enter_context(server.running(listener))
        begin = _one if is_one(args) else _several
        opened = begin(args, console, template, stack, told.alias)
        budget = told.max_budget or opened.settings.load.memory_budget
        changes = {"max_budget": budget, "max_body": opened.body_bytes or told.max_body}
        server.open(
            **opened.options,
            settings=told.model_copy(update=changes),
            max_tokens=_max_tokens(opened.settings.generate),
        )
        stack.callback(server.close)
        address, shown = _address(listener), format_size(opened.budget_bytes)
        console.note(
            f"{opened.named} at {address}/v1, a page to chat at {address}/ (budget {shown}); "
            "Ctrl-C ends it"
        )
        if server.chat_refusal is not None:
            console.note(f"no chat, only /v1/completions: {marked(server.chat_refusal)}")
        with interrupts.stopping(server.drain, n_orderly=2):  # the second ends what is drained
            server.wait()
    tell(console, "stopped")
    return 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """The models of a server, with what is loaded at the beginning."""

    options: dict[str, Any]
    """Arguments of `Server.open`."""
    settings: CommandSettings
    """Settings of the model, or of one of several."""
    body_bytes: int = 0
    """Size limit of a request's body, the same for several models; 0 for one of them."""

    @property
    def budget_bytes(self) -> int:
        first = self.options["first"]
        if first is None:
            return process.resolve_budget(self.settings.load.memory_budget)
        return int(first.model.plan.budget_bytes)

    @property
    def named(self) -> str:
        """Name of the model, or number of models, for people."""
        models = self.options["models"]
        return models[0].name if len(models) == 1 else f"{len(models)} models"


def _one(
    args: argparse.Namespace,
    console: Console,
    template: str | None,
    stack: ExitStack,
    alias: str | None,
) -> _Opened:
    """A single model."""
    from edgespec.completions.protocols.model_names import HostedModel
    from edgespec.server.hosting import LoadedModel

    name = alias or _name(args)
    folder = str(cache_folder.prompts())
    settings = settings_from(args, n_parallel=PARALLEL, prompt_cache=folder)
    settings = for_requests(settings, args.body_bytes)
    loaded = stack.enter_context(settings.opened(console, template))
    loaded.warn_with(partial(tell, console))
    sampling = _sampling(settings.generate, loaded.chat_sampling)
    info = loaded.target
    model = HostedModel(name or info.name, size_bytes=info.size_bytes)
    model.smallest_bytes = loaded.plan.smallest_bytes
    return _Opened({"models": [model], "first": LoadedModel(loaded, sampling)}, settings)


def _several(
    args: argparse.Namespace,
    console: Console,
    template: str | None,
    stack: ExitStack,
    alias: str | None,
) -> _Opened:
    """Several models, with the first one loaded that has been named. Raises UsageError for an alias
    of one."""
    if alias:
        raise UsageError(f"{setting.alias} names one model, and there are several: leave it out")
    folder = str(cache_folder.prompts())
    known = ModelList(args, console, template, n_parallel=PARALLEL, prompt_cache=folder)
    load = loader(known, partial(tell, console))
    begun = None
    if (first := known.first) is not None:
        begun = load(first, console.progress)
        stack.callback(begun.model.close)
    options = {
        "models": known.models,
        "first": begun,
        "load": load,
        "on_budget": known.keep_budget,
    }
    return _Opened(options, known.settings(first or known.models[0]), known.body_bytes)


def loader(
    models: ModelList, warn: Callable[[str], None]
) -> Callable[[HostedModel, Progress], LoadedModel]:
    """A function that loads a model of a list for a server; `warn` is called with warnings of
    sessions."""
    from edgespec.server.hosting import LoadedModel
    from edgespec.session.session import Session

    of_name = {one.name: one for one in models.models}

    def load(model: HostedModel, progress: Progress) -> LoadedModel:
        one = of_name[model.name]
        loaded = models.load(one, progress)
        sampling: dict[str, Any] = {}
        if isinstance(loaded, Session):
            loaded.warn_with(warn)
            sampling = _sampling(models.settings(one).generate, loaded.chat_sampling)
        return LoadedModel(loaded, sampling)

    return load


def _name(args: argparse.Namespace) -> str | None:
    """The model's name as it was typed; None for the pair that comes with edgespec."""
    if "hf_repo" in args:
        return str(args.hf_repo)
    typed = getattr(args, "model", None)
    return None if typed is None else Path(typed).name


def _sampling(settings: GenerateSettings, recommended: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of requests: what flags and the file say, otherwise what is recommended."""
    told = settings.model_fields_set & {*Sampling.model_fields, "seed"}
    return {**recommended, **settings.model_dump(include=told, exclude_none=True)}


def _max_tokens(settings: GenerateSettings) -> int | None:
    """The limit of every answer; none unless it was asked for."""
    return settings.limit if "max_tokens" in settings.model_fields_set else None


def _guard(told: ServerSettings) -> Guard:
    from edgespec.server.guarding import Guard

    key, admins = told.api_key_file, told.admin_key_file
    return Guard(
        told.host,
        read_text("--api-key-file", key, MAX_KEY_BYTES).strip()
        if key
        else os.environ.get(KEY_VARIABLE) or None,
        frozenset(name.lower() for name in told.allowed_host),
        frozenset(origin.lower().rstrip("/") for origin in told.allowed_origin),
        read_text("admin-key-file", admins, MAX_KEY_BYTES) if admins else None,
    )


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket, before the model is loaded. Raises EdgespecError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (")[0]
        raise EdgespecError(
            f"cannot listen at {host}, port {port}: {reason}; --port 0 takes a free one"
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def tell(console: Console, note: str) -> None:
    """Write a note as far as the console can be written: the engine's thread calls it."""
    with suppress(OSError):
        console.note(note)


def log_request(console: Console, is_json: bool, quiet: bool, answered: AnsweredRequest) -> None:
    """Write a request at its end as far as the console can be written; with `quiet` only one that
    failed."""
    if not quiet or answered.traceback:
        with suppress(OSError):
            console.log(_object(answered) if is_json else _lines(answered))


def _object(answered: AnsweredRequest) -> str:
    fields = asdict(answered) | {"seconds": round(answered.seconds, 6)}
    told = {name: value for name, value in fields.items() if value not in ("", [], ())}
    return json.dumps({"time": _now()} | told, ensure_ascii=False)


def _lines(answered: AnsweredRequest) -> str:
    tokens = ""
    if answered.prompt_tokens is not None:
        tokens = f" {answered.prompt_tokens} + {answered.completion_tokens} tokens"
    told = (
        f"{_now()} {answered.id} {answered.method} {answered.route} {answered.status}"
        f"{tokens} {answered.seconds:.3f} s"
    )
    if answered.ignored:
        told += f", ignored fields: {json.dumps(answered.ignored, ensure_ascii=False)[1:-1]}"
    return f"{told}\n{answered.traceback}".rstrip()


def _now() -> str:
    """The local time with its offset, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
