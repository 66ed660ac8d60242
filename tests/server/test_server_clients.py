"""Clients that go away: their generations end, and nothing of them stays."""

import json
import os
import random
import socket
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from server_running import pair, running, serving

LONG = {"prompt": "def f(", "max_tokens": 1500, "logit_bias": {}, "temperature": 1.2, "seed": 3}
PATIENCE_S = 60


@pytest.fixture(scope="module", params=[1, 3])
def session(request):
    with pair(n_parallel=request.param) as loaded:
        yield loaded


@pytest.fixture
def address(session):
    with serving(session) as running:
        yield running


def figure(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics", timeout=PATIENCE_S).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"edgespec_{name} "))


def until_idle(address: str) -> None:
    """Wait for whatever runs; the next request waits for its turn anyway."""
    for _ in range(2000):
        if figure(address, "requests_in_progress") == 0:
            return
    raise AssertionError("a request goes on without its client")


def raw(address: str, asked: dict) -> socket.socket:
    """A connection on which a request was sent and nothing read."""
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps(asked).encode()
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.costly
def test_a_client_that_leaves_a_stream_ends_its_generation(address):
    before = figure(address, "generated_tokens_total")
    with httpx.stream(
        "POST", f"{address}/v1/completions", json=LONG | {"stream": True}, timeout=PATIENCE_S
    ) as response:
        next(response.iter_lines())
    until_idle(address)
    assert 0 < figure(address, "generated_tokens_total") - before < 1500
    assert figure(address, "clients_gone_total") == 1


def test_a_client_that_leaves_while_it_waits_gives_up_its_place(address):
    first = raw(address, LONG | {"stream": True})
    first.recv(1)
    second = raw(address, LONG)
    second.close()
    first.close()
    until_idle(address)
    answer = httpx.post(
        f"{address}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=PATIENCE_S
    )
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_who_waits_for_a_server_that_ends_is_told(session):
    with (
        running(session) as (address, server),
        httpx.stream(
            "POST", f"{address}/v1/completions", json=LONG | {"stream": True}, timeout=PATIENCE_S
        ) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        waiting = Waiting(address)
        server.stop()
        *_, last, done = [line for line in lines if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert done == "data: [DONE]"
    answer = waiting.answer()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"


class Waiting:
    """A client in line, behind the one that is answered."""

    def __init__(self, address: str) -> None:
        self._answers: list[httpx.Response] = []
        self._thread = threading.Thread(target=self._ask, args=(address,))
        self._thread.start()
        while figure(address, "requests_in_progress") < 2:
            pass

    def _ask(self, address: str) -> None:
        self._answers.append(httpx.post(f"{address}/v1/completions", json=LONG, timeout=PATIENCE_S))

    def answer(self) -> httpx.Response:
        self._thread.join()
        return self._answers[0]


def resources() -> tuple[int, int]:
    """Threads and open files of this process; the event loop's own few threads come and stay."""
    threads = [thread for thread in threading.enumerate() if "asyncio" not in thread.name]
    return len(threads), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_two_hundred_clients_killed_at_random_leave_nothing(address, session):
    asked = {"prompt": "import ", "max_tokens": 12}
    alone = session.generate("import ", max_tokens=12).text

    def answer() -> str:
        response = httpx.post(f"{address}/v1/completions", json=asked, timeout=PATIENCE_S)
        return response.json()["choices"][0]["text"]

    chance = random.Random(4)

    def kill(n: int) -> None:
        for _ in range(n):
            connection = raw(address, LONG | {"stream": chance.random() < 0.7})
            if chance.random() < 0.8:
                connection.settimeout(chance.random() * 0.3)
                with suppress(TimeoutError):
                    connection.recv(chance.randrange(1, 4000))
            connection.close()

    kill(40)  # what is taken once and kept
    until_idle(address)
    assert answer() == alone
    before, rss_bytes = resources(), psutil.Process(os.getpid()).memory_info().rss
    kill(200)
    until_idle(address)
    assert answer() == alone
    # one that is just ending or a connection that is just closed may count; 200 may not
    assert all(now <= then + 3 for now, then in zip(resources(), before, strict=True))
    grown_bytes = psutil.Process(os.getpid()).memory_info().rss - rss_bytes
    assert grown_bytes < 8 << 20
