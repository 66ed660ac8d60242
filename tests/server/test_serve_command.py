"""`edgespec serve` as a process: what it says, what it refuses, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from edgespec.cli import command_line, console
from sentences import hold_sentence
from server_running import TEMPLATE

ASK = {"messages": [{"role": "user", "content": "write gcd"}], "max_tokens": 6}


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edgespec", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    for line in process.stderr:
        if found := re.search(r"(http://[^/ ]+)/v1", line):
            return found[1]
    raise AssertionError("it ended without an address")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_told_to_end(number):
    with start("--chat-template", TEMPLATE, "--memory-budget", "256MiB") as process:
        address = address_of(process)
        answer = httpx.post(f"{address}/v1/chat/completions", json=ASK, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 6
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(60) == 0
    *requests, last = rest.splitlines()
    assert last == "stopped"
    assert [line.split()[2:8] for line in requests] == [
        ["POST", "/v1/chat/completions", "200", "10", "+", "6"]
    ]


@pytest.mark.slow
def test_a_key_may_come_from_the_environment_and_a_stream_ends_with_the_server(tmp_path: Path):
    (tmp_path / "server.toml").write_text("drain = 0.5\n")
    config = ("--config", str(tmp_path / "server.toml"))
    with start(*config, EDGESPEC_API_KEY="secret") as process:
        address = address_of(process)
        assert httpx.get(f"{address}/v1/models").status_code == 401
        http = httpx.Client(headers={"Authorization": "Bearer secret"}, timeout=60)
        asked = {"prompt": "def f(", "max_tokens": 3000, "stream": True, "temperature": 1.3}
        with http, http.stream("POST", f"{address}/v1/completions", json=asked) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        process.stderr.read()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_server_whose_terminal_is_gone_ends_in_order():
    """Its last word, "stopped", could not be written, and the exit code was 1."""
    with start("--memory-budget", "256MiB") as process:
        assert httpx.get(f"{address_of(process)}/health", timeout=60).status_code == 200
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0


def test_a_port_that_is_taken_is_told_once(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert command_line.main(["serve", "--port", str(port)]) == 1
    assert capsys.readouterr().err.endswith(
        f"cannot listen at 127.0.0.1, port {port}: Address already in use; "
        "--port 0 takes a free one\n"
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("--host", "0.0.0.0"), 2),
        (("--port", "x"), 2),
        (("--chat-template", "{% if %}"), 3),
        (("--api-key-file", "none"), 2),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments, exit_code, capsys, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE_S", 60.0)  # a busy machine would show progress
    assert command_line.main(["serve", "--port", "0", *arguments]) == exit_code
    hold_sentence(capsys.readouterr().err)
