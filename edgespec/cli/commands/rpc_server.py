"""`edgespec rpc-server`: lends this machine's devices until it is stopped."""

from __future__ import annotations

import argparse
import socket
import sys
from argparse import ArgumentParser
from threading import Thread
from typing import Annotated

from pydantic import BeforeValidator, Field

from edgespec import registry
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.errors import EdgespecError
from edgespec.memory.process import resolve_budget
from edgespec.server.guarding import is_local
from edgespec.settings.base import Flag, Settings
from edgespec.settings.config import Threads
from edgespec.settings.parsing import MAX_PORT, budget
from edgespec.settings.units import format_size

HOST = "127.0.0.1"

_DESCRIPTION = """\
Lend this machine's memory and processor, or its GPUs, to a model on another machine: it runs there
with --rpc HOST:PORT, and layers of the target are held and computed here. llama.cpp's own programs
can use the server, too, and edgespec can use theirs; both need the same version of llama.cpp."""

_EXAMPLES = """\
examples:
  edgespec rpc-server --memory-budget 2GiB
  ssh -N -L 50052:127.0.0.1:50052 USER@THIS-MACHINE     (on the other machine, which then says:)
  edgespec generate -m big.gguf -md small.gguf --rpc 127.0.0.1:50052 -p 'Once upon a time'

llama.cpp calls this a proof of concept, fragile and insecure: never run it on an open network or in
a sensitive environment. Nothing is encrypted and nobody is asked for a password: whoever reaches
the port can probably take over this account. Therefore it is reached from this machine only, and
others come through SSH, as above, or WireGuard: --host names an address that only its peers reach.
It serves one client at a time."""


class LendSettings(Settings):
    """Settings of a machine that lends its memory."""

    host: Annotated[str, Flag(metavar="ADDRESS")] = HOST
    """Address to listen on."""
    port: Annotated[int, Flag(metavar="N", short="-p"), Field(ge=1, le=MAX_PORT)] = 50052
    """Port."""
    memory_budget: Annotated[int | str, Flag(metavar="SIZE"), BeforeValidator(budget)] = "auto"
    """Most memory of the whole server process where the processor computes, like 2GiB or 50%.
    Default: auto, what is free now less a margin; no limit on other systems than Linux."""
    threads: Annotated[Threads | None, Flag(metavar="N", short="-t")] = None
    """Threads that compute. Default: one for each physical core."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    groups.add(parser, LendSettings)


_POLL_S = 0.2
_WARNING = (
    "{host} can be reached from other machines: nothing is encrypted, nobody is asked for a "
    "password, and llama.cpp calls its RPC a proof of concept, never to be run on an open network"
)


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    told = groups.given(args, LendSettings)
    host, port, asked = told.host, told.port, told.memory_budget
    cannot_limit = sys.platform != "linux" and asked == "auto"
    budget_bytes = None if cannot_limit else resolve_budget(asked)
    found = (r for r in registry.installed() if not isinstance(r, str) and r.lends)
    runtime = next(found, None)
    if runtime is None:
        raise EdgespecError("no installed runtime can lend devices: install edgespec[gguf]")
    host_ip = _checked_address(host, port)
    console = Console()
    if not is_local(host):
        console.note(_WARNING.format(host=host))
    failures: list[BaseException] = []

    def lend() -> None:
        try:
            runtime.lend(host_ip, port, budget_bytes, told.threads)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread below
            failures.append(error)

    most = "" if budget_bytes is None else f" with at most {format_size(budget_bytes)}"
    console.note(f"serving at {host}:{port}{most}; Ctrl-C ends it")
    # native code blocks signals, so it does not run in the main thread
    serving = Thread(target=lend, daemon=True)
    serving.start()
    try:
        while serving.is_alive():
            serving.join(_POLL_S)
    except KeyboardInterrupt:
        console.note("stopped")
        return 0
    raise failures[0]


def _checked_address(host: str, port: int) -> str:
    """The IPv4 address of a name, which the library wants. Raises EdgespecError if it cannot be
    served."""
    try:
        address = socket.gethostbyname(host)
        with socket.create_server((address, port)):
            return address
    except (OSError, UnicodeError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (")[0]
        raise EdgespecError(
            f"{host}:{port} cannot be served ({why}): name an IPv4 address of this machine with "
            "--host, and a port that is free with --port"
        ) from error
