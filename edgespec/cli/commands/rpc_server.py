"""`edgespec rpc-server`: lends this machine's devices until it is stopped."""

from __future__ import annotations

import argparse
import errno
import os
import socket
from threading import Thread

from edgespec import runtimes
from edgespec.cli.console import Console
from edgespec.cli.flags.rpc_server import HOST, PORT
from edgespec.cli.flags.values import whole
from edgespec.cli.interrupts import Interrupts
from edgespec.errors import EdgespecError, UsageError
from edgespec.memory.process import resolve_budget
from edgespec.server.guarding import is_local
from edgespec.settings.units import format_size

MAX_PORT = 65535
_POLL_S = 0.2
_WARNING = (
    "{host} can be reached from other machines: nothing is encrypted, nobody is asked for a "
    "password, and llama.cpp calls its RPC a proof of concept, never to be run on an open network"
)


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    host = getattr(args, "host", HOST)
    port = whole("--port", getattr(args, "port", PORT), 1, MAX_PORT)
    n_threads = whole("--threads", args.threads, 1, 1024) if "threads" in args else None
    budget_bytes = resolve_budget(getattr(args, "memory_budget", "auto"))
    runtime = next((r for r in runtimes.installed() if isinstance(r, runtimes.LendsDevices)), None)
    if runtime is None:
        raise EdgespecError("no installed runtime can lend devices: install edgespec[gguf]")
    host_ip = _checked_address(host, port)
    console = Console()
    if not is_local(host):
        console.note(_WARNING.format(host=host))
    failures: list[BaseException] = []

    def lend() -> None:
        try:
            runtime.lend(host_ip, port, budget_bytes, n_threads)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread below
            failures.append(error)

    console.note(
        f"serving at {host}:{port} with at most {format_size(budget_bytes)}; Ctrl-C ends it"
    )
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
    """The IPv4 address of a name, which the library wants. Raises UsageError if it is not this
    machine's, and EdgespecError if another program is there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: no such name is known: write an address") from error
    addresses = [str(place[0]) for family, _, _, _, place in found if family == socket.AF_INET]
    if not addresses:
        raise UsageError(
            f"--host {host}: llama.cpp's RPC knows IPv4 addresses only, such as {HOST}"
        )
    try:
        with socket.create_server((addresses[0], port)):
            return addresses[0]
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"--host {host}: no network device of this machine has that address"
            ) from error
        is_taken = error.errno == errno.EADDRINUSE
        what = "another program is there, so name another --port" if is_taken else "choose another"
        why = os.strerror(error.errno or 0)
        raise EdgespecError(f"{host}:{port} cannot be served ({why}): {what}") from error
