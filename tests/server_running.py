"""A server over the embedded pair, in a thread of the test's process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import edgespec
from edgespec.cli.commands import serve
from edgespec.cli.model_list import ModelList
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.models.embedded import embedded_pair
from edgespec.server.guarding import Guard
from edgespec.server.hosting import LoadedModel
from edgespec.server.lifetime import Server
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings, ServerSettings

TEMPLATE = """\
{%- for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}
{%- if add_generation_prompt %}def {% endif %}"""


@contextmanager
def pair(**settings: object) -> Iterator[Session]:
    """The embedded pair, with a chat template."""
    files = embedded_pair()
    with edgespec.load(LoadSettings(model=files.target, draft=files.draft, **settings)) as session:
        session.use_chat_template(TEMPLATE)
        yield session


@contextmanager
def serving(session: Session, guard: Guard | None = None, **options: Any) -> Iterator[str]:
    """The address of a server over `session`, greedy unless a request says otherwise."""
    with running(session, guard, **options) as (address, _):
        yield address


def server_over(session: Session, guard: Guard | None = None, **options: Any) -> Server:
    """A server over `session`, whose options are settings, too."""
    names = ServerSettings.model_fields.keys() & options.keys()
    settings = ServerSettings(**{name: options.pop(name) for name in names})
    of_server = {name: options.pop(name) for name in ("log", "limits") if name in options}
    server = Server(guard or Guard("127.0.0.1"), settings.drain, **of_server)
    first = LoadedModel(session, options.pop("sampling", {"temperature": 0.0}))
    server.open(options.pop("models", [HostedModel("pair")]), first, settings, **options)
    return server


@contextmanager
def at_address(server: Server) -> Iterator[str]:
    """The address of a server that runs in the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener, server.running(listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def running(
    session: Session, guard: Guard | None = None, **options: Any
) -> Iterator[tuple[str, Server]]:
    """A server over `session`, which goes on to the next test, and its address."""
    server = server_over(session, guard, **options)
    with at_address(server) as address:
        yield address, server


@contextmanager
def serving_list(models: ModelList) -> Iterator[str]:
    """The address of a server over a list of models, greedy unless a request says otherwise."""
    server = Server(Guard("127.0.0.1"))
    server.open(
        models.models,
        None,
        ServerSettings(max_body=models.body_bytes),
        load=serve.loader(models, lambda warning: None),
        on_budget=models.keep_budget,
    )
    with closing(server), at_address(server) as address:
        yield address
        server.stop()
