"""`edgespec rpc-server`: what it refuses and says, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from edgespec.cli import command_line
from edgespec.cli.commands import rpc_server as rpc_server_command
from edgespec.server.guarding import is_local
from rpc_servers import free_port, needs_rpc, running

pytest.importorskip("llama_cpp")
from edgespec_runtimes.gguf.llama import rpc

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, and gives its exit code and last line."""

    def run(*flags: str) -> tuple[int, str]:
        code = command_line.main(["rpc-server", *flags])
        return code, capsys.readouterr().err.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("0", "greater than or equal to 1"),
        ("65536", "less than or equal to 65535"),
        ("x", "a valid integer, unable to parse string as an integer"),
    ],
)
def test_what_is_no_port_is_refused(port: str, said: str, refused: Refused):
    assert refused("--port", port) == (2, f"edgespec: error: --port {port}: it must be {said}")


def test_an_address_that_is_taken_is_an_error(rpc_server: str, refused: Refused):
    address = rpc_server
    code, line = refused("--port", address.rpartition(":")[2])
    assert code == 1
    assert f"{address} cannot be served (Address already in use): name an IPv4" in line


@pytest.mark.parametrize("host", ["::1", "no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_refused(host: str, refused: Refused):
    code, line = refused("--host", host, "--port", str(free_port()))
    assert code == 1 and "cannot be served" in line


@needs_rpc
def test_other_systems_lend_without_a_limit(monkeypatch: pytest.MonkeyPatch, refused: Refused):
    """The default was refused there: leave out what nobody had given."""
    monkeypatch.setattr(rpc_server_command, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(rpc, "serve", lambda *_: None)
    code, line = refused("--port", str(free_port()))
    assert code == 1 and "cannot be served: is another program there?" in line


@pytest.mark.slow
@needs_rpc
def test_a_name_of_this_machine_will_do_and_a_signal_ends_it():
    """llama.cpp takes numbers only."""
    with running("120MiB", host="localhost") as (address, server):
        assert address.startswith("127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_only_addresses_of_this_machine_need_no_warning(host: str, expected: bool):
    assert is_local(host) is expected
