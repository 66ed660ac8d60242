"""`edgespec serve`: opens a socket, answers 503 while a session opens, and runs the server."""

from __future__ import annotations

import argparse
import json
import os
import socket
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import read_text, template_from, text_or_file
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import CommandSettings, settings_from
from edgespec.cli.model_list import PARALLEL, ModelList, for_requests, is_one
from edgespec.errors import EdgespecError
from edgespec.memory import process, room
from edgespec.server.access_log import AccessLog, AnsweredRequest
from edgespec.settings.base import Flag, Settings
from edgespec.settings.config import INT32_MAX, Count, GenerateSettings, LoadSettings, Sampling
from edgespec.settings.parsing import MAX_PORT, budget
from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.completions.protocols.model_names import HostedModel
    from edgespec.ports import Progress
    from edgespec.server.guarding import Guard
    from edgespec.server.lifetime import LoadedModel


KEY_VARIABLE = "EDGESPEC_API_KEY"
MAX_KEY_BYTES = 64 << 10
DAY_S = 24 * 3600
IMPORTED_BYTES = 16 << 20
"""Memory that importing the server takes."""

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


class ServeSettings(Settings):
    """Settings of a server, beside those of its models and answers."""

    host: Annotated[str, Flag(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Flag(metavar="N"), Field(ge=0, le=MAX_PORT)] = 8080
    """Port; 0 takes a free one."""
    api_key: Annotated[str | None, Flag(metavar="KEY")] = None
    """Key that clients must send; other users can see flags, so prefer --api-key-file or the
    environment variable EDGESPEC_API_KEY."""
    api_key_file: Annotated[Path | None, Flag(metavar="FILE")] = None
    """The same, from a file; several keys, one a line, are for clients whose texts stay apart."""
    admin_key_file: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of keys, one a line, of those who may also change the budget. Default: everybody where
    no key is needed, otherwise nobody."""
    max_budget: Annotated[int | str | None, Flag(metavar="SIZE"), BeforeValidator(budget)] = None
    """Largest memory budget that clients may set. Default: that of the start."""
    allowed_host: Annotated[tuple[str, ...], Flag(metavar="NAME")] = ()
    """Host name that requests may use besides the address; may be given several times."""
    allowed_origin: Annotated[tuple[str, ...], Flag(metavar="ORIGIN")] = ()
    """Origin of web pages that may ask from a browser (CORS), such as http://localhost:3000, or *
    for any; may be given several times."""
    alias: Annotated[str | None, Flag(metavar="NAME")] = None
    """Name of the model in answers."""
    queue: Annotated[Count, Flag(metavar="N")] = 32
    """Requests that may wait; more are refused with status 503."""
    max_prompt: Annotated[Count | None, Flag(metavar="N")] = None
    """Most tokens of a prompt. Default: the context."""
    reasoning_budget: Annotated[int, Flag(metavar="N"), Field(ge=-1, le=INT32_MAX)] = -1
    """Most tokens of a model's reasoning, which is then ended as its template ends it, unless a
    request names another number; 0: none. Default: -1, no limit."""
    time_limit: Annotated[float | None, Flag(metavar="SECONDS"), Field(ge=0, le=DAY_S)] = None
    """Most seconds of an answer from its turn on, after which it ends as if its tokens were used
    up. Default: no limit."""
    drain: Annotated[float, Flag(metavar="SECONDS"), Field(ge=0, le=DAY_S)] = 30
    """Seconds that requests under way have after Ctrl-C or SIGTERM; a second one ends them at
    once."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add_models(parser, several=True)
    groups.add_memory(parser)
    groups.add_context(parser)
    groups.add_parallel(parser, PARALLEL)
    groups.add_sampling(parser, serves=True)
    groups.add_speculation(parser)
    groups.add_prompt_cache(parser)
    groups.add_chat_template(parser)
    group = parser.add_argument_group("server")
    groups.add(group, ServeSettings)
    groups.add(group, groups.BodyLimit)
    groups.add(group, LoadSettings, "adjustable_budget")
    output = parser.add_argument_group("output")
    groups.flag(output, "--log-json", "log each request as a JSON object on one line")
    groups.flag(output, "--quiet", "print no notes, progress or requests")


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM, and let requests under way end."""
    room.check(IMPORTED_BYTES, "edgespec serve")
    with extras.needed("serve", "serving needs starlette and uvicorn"):
        from edgespec.server import lifetime, serving  # first, so that their memory is planned

    told = groups.given(args, ServeSettings)
    guard = _guard(args)
    template = template_from(args)
    reasoning = None if told.reasoning_budget == -1 else told.reasoning_budget
    console = Console(quiet="quiet" in args)
    log = RequestLog(console, is_json="log_json" in args, quiet="quiet" in args)
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(guard.host, told.port))
        args.keeps_one_text_fast = True
        args.body_bytes = guard.max_body_bytes or 0
        limits = lifetime.CLIENT_LIMITS
        with lifetime.answered_while_loading(listener, guard, log, limits, lambda: console.doing):
            opened = (_one if is_one(args) else _several)(args, console, template, stack)
            server = lifetime.Server(
                guard=replace(guard, max_body_bytes=opened.body_bytes or guard.max_body_bytes),
                **opened.options,
                max_waiting=told.queue,
                max_prompt_tokens=told.max_prompt,
                answer_limits=serving.AnswerLimits(
                    _max_tokens(opened.settings.generate), told.time_limit, reasoning
                ),
                log=log,
                drain_s=told.drain,
                max_budget=told.max_budget or opened.settings.load.memory_budget,
            )
            stack.callback(server.close)
        address, shown = _address(listener), format_size(opened.budget_bytes)
        console.note(
            f"{server.named} at {address}/v1, a page to chat at {address}/ (budget {shown}); "
            "Ctrl-C ends it"
        )
        if server.chat_refusal is not None:
            console.note(f"no chat, only /v1/completions: {server.chat_refusal}")
        with interrupts.stopping(server.drain, n_orderly=2):  # the second ends what is drained
            server.run(listener)
    Teller(console)("stopped")
    return 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """The models of a server, with what is loaded at the beginning."""

    options: dict[str, Any]
    """Arguments of `Server`."""
    settings: CommandSettings
    """Settings of the model, or of one of several."""
    body_bytes: int = 0
    """Size limit of a request's body, the same for several models; 0 for one of them."""

    @property
    def budget_bytes(self) -> int:
        loaded = self.options["session"]
        if loaded is None:
            return process.resolve_budget(self.settings.load.memory_budget)
        return int(loaded.plan.budget_bytes)


def _one(
    args: argparse.Namespace, console: Console, template: str | None, stack: ExitStack
) -> _Opened:
    """A single model."""
    name = _name(args)
    settings = for_requests(settings_from(args, n_parallel=PARALLEL), args.body_bytes)
    loaded = stack.enter_context(settings.opened(console, template))
    loaded.warn_with(Teller(console))
    sampling = _sampling(settings.generate, loaded.chat_sampling)
    options = {"session": loaded, "model": name or loaded.target.name, "sampling": sampling}
    return _Opened(options, settings)


def _several(
    args: argparse.Namespace, console: Console, template: str | None, stack: ExitStack
) -> _Opened:
    """Several models, with the first one loaded that has been named."""
    known = ModelList(args, console, template, n_parallel=PARALLEL)
    load = loader(known, Teller(console))
    options: dict[str, Any] = {
        "session": None,
        "model": "",
        "models": known.models,
        "load": load,
        "together": known.together,
        "on_budget": known.keep_budget,
    }
    if (first := known.first) is not None:
        begun = load(first, False, console.progress)
        stack.callback(begun.model.close)
        options |= {
            "session": begun.model,
            "model": first.name,
            "sampling": begun.sampling,
            "leaves_room": begun.leaves_room,
        }
    return _Opened(options, known.settings(first or known.models[0]), known.body_bytes)


def loader(
    models: ModelList, tell: Callable[[str], None] | None = None
) -> Callable[[HostedModel, bool, Progress], LoadedModel]:
    """A function that loads a model of a list for a server; `tell` is called with warnings of
    sessions."""
    from edgespec.server.lifetime import LoadedModel
    from edgespec.session.session import Session

    of_name = {one.name: one for one in models.models}

    def load(model: HostedModel, beside: bool, progress: Progress) -> LoadedModel:
        one = of_name[model.name]
        loaded, leaves_room = models.load(one, progress, beside)
        sampling = None
        if isinstance(loaded, Session):
            if tell is not None:
                loaded.warn_with(tell)
            sampling = _sampling(models.settings(one).generate, loaded.chat_sampling)
        return LoadedModel(loaded, sampling, leaves_room)

    return load


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

    told = groups.given(args, ServeSettings)
    return Guard(
        told.host,
        _key(args),
        frozenset(name.lower() for name in told.allowed_host),
        groups.given(args, groups.BodyLimit).max_body,
        frozenset(origin.lower().rstrip("/") for origin in told.allowed_origin),
        None
        if told.admin_key_file is None
        else read_text("--admin-key-file", told.admin_key_file, MAX_KEY_BYTES),
    )


def _key(args: argparse.Namespace) -> str | None:
    key = text_or_file(args, "api_key", MAX_KEY_BYTES)
    if key is None:
        return os.environ.get(KEY_VARIABLE) or None
    return key.strip() if "api_key_file" in args else key


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open a listening socket, before the model is loaded. Raises EdgespecError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (")[0]
        raise EdgespecError(
            f"cannot listen at {host}, port {port}: {reason}; --port 0 takes a free one"
        ) from error
    with listener:
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Teller:
    """Writes notes to a console, as far as it can be written: the engine's thread calls it."""

    console: Console

    def __call__(self, note: str) -> None:
        with suppress(OSError):
            self.console.note(note)


class RequestLog(AccessLog):
    """Writes requests and failures to a console, as far as it can be written: its disk may be full,
    or its terminal gone."""

    def __init__(self, console: Console, is_json: bool = False, quiet: bool = False) -> None:
        """With `quiet`, only failures are written."""
        self._console = console
        self._is_json = is_json
        self._quiet = quiet

    def request(self, answered: AnsweredRequest) -> None:
        if self._quiet:
            return
        if self._is_json:
            self._write(**asdict(answered) | {"seconds": round(answered.seconds, 6)})
            return
        tokens = ""
        if answered.prompt_tokens is not None:
            tokens = f" {answered.prompt_tokens} + {answered.completion_tokens} tokens"
        self._log(
            f"{_now()} {answered.id} {answered.method} {answered.route} {answered.status}"
            f"{tokens} {answered.seconds:.3f} s"
        )

    def left_out(self, request_id: str, names: Sequence[str]) -> None:
        if self._is_json:
            self._write(id=request_id, ignored=names)
        elif not self._quiet:
            self._log(f"{_now()} {request_id} ignored fields: {', '.join(names)}")

    def failure(self, request_id: str, traceback: str) -> None:
        if self._is_json:
            self._write(id=request_id, traceback=traceback)
        else:
            self._log(f"{_now()} {request_id} failed\n{traceback.rstrip()}")

    def _write(self, **fields: Any) -> None:
        self._log(json.dumps({"time": _now()} | fields, ensure_ascii=False))

    def _log(self, line: str) -> None:
        with suppress(OSError):
            self._console.log(line)


def _now() -> str:
    """The local time with its offset, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
