"""The health check of a container: asks each `edgespec serve` at the port where it listens.

`python -m edgespec.cli.health [PID]` ends with 0 if all of them, or the one named, are well.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath

import psutil

TIMEOUT_S = 4


def main(arguments: Sequence[str]) -> int:
    """Check the servers; returns the exit code."""
    pids = [int(pid) for pid in arguments]
    found = [address for pid in pids or servers() for address in addresses(pid)]
    failures = [failure for address in found if (failure := failure_of(address))]
    if not found:
        failures.append("no edgespec serve is listening")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def servers() -> Iterator[int]:
    """Process ids of the servers that this process can see."""
    for process in psutil.process_iter():
        try:
            if is_server(process.cmdline()):
                yield process.pid
        except psutil.Error:  # it has ended, or is another user's
            continue


def is_server(command: Sequence[str]) -> bool:
    """True for the command line of `edgespec serve`, with or without its interpreter."""
    names = [PurePath(word).name for word in command]
    return any(pair == ("edgespec", "serve") for pair in pairwise(names))


def addresses(pid: int) -> Iterator[str]:
    """The addresses at which a process listens, reached from here; none of another user's."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:  # it has ended, or may not be asked
        return
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN:
            host, port = connection.laddr
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def failure_of(address: str) -> str:
    """Description of what is wrong with a server; empty if it is well."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{address}: {error.read(2000).decode(errors='replace')}"
    except OSError as error:
        return f"{address}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
