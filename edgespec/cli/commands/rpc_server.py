"""`edgespec rpc-server`: lends this machine's devices until it is stopped."""

from __future__ import annotations

import argparse
import ipaddress
from threading import Thread

from edgespec import runtimes
from edgespec.cli.console import Console
from edgespec.cli.flags.rpc_server import HOST, PORT
from edgespec.cli.interrupts import Interrupts
from edgespec.errors import EdgespecError, UsageError
from edgespec.memory.process import resolve_budget
from edgespec.settings.units import format_size

MOST_PORT = 65535
_POLL_S = 0.2
_WARNING = (
    "{host} can be reached from other machines: nothing is encrypted, nobody is asked for a "
    "password, and llama.cpp calls its RPC a proof of concept, never to be run on an open network"
)


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    host = getattr(args, "host", HOST)
    port = _whole("--port", getattr(args, "port", str(PORT)), MOST_PORT)
    n_threads = _whole("--threads", args.threads, 1024) if "threads" in args else None
    budget_bytes = resolve_budget(getattr(args, "memory_budget", "auto"))
    runtime = next((r for r in runtimes.installed() if isinstance(r, runtimes.LendsDevices)), None)
    if runtime is None:
        raise EdgespecError("no installed runtime can lend devices: install edgespec[gguf]")
    console = Console()
    if not _is_local(host):
        console.note(_WARNING.format(host=host))
    failures: list[BaseException] = []

    def lend() -> None:
        try:
            runtime.lend(host, port, budget_bytes, n_threads)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread, below
            failures.append(error)

    console.note(
        f"serving at {host}:{port} with at most {format_size(budget_bytes)}; Ctrl-C ends it"
    )
    # native code hears no signal, so it does not run in the main thread
    serving = Thread(target=lend, daemon=True)
    serving.start()
    try:
        while serving.is_alive():
            serving.join(_POLL_S)
    except KeyboardInterrupt:
        console.note("stopped")
        return 0
    raise failures[0]


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _whole(flag: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise UsageError(f"{flag} {text}: it must be a whole number from 1 to {most:,}")
    return int(text)
