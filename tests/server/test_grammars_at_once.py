"""Requests with grammars and large answers at once: each is answered, and memory is for a few."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_serve_command import address_of, start
from test_server_clients import until_idle

from edgespec.completions.request_limits import max_answer_tokens
from edgespec.engine.text import Text
from edgespec.grammar.specification import GRAMMARS_AT_ONCE
from edgespec.server.lifetime import Server
from engine_cases import counting
from server_running import pair, running, serving
from session_cases import holds_passes, open_session

CLIENT = httpx.Client(timeout=60, headers={"Connection": "close"}, trust_env=False)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}


def ask(address: str, **fields: Any) -> httpx.Response:
    asked = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0} | fields
    return CLIENT.post(f"{address}/v1/completions", json=asked)


def slots(address: str) -> tuple[int, int]:
    """Requests under way, and those of them that have a slot."""
    found = CLIENT.get(f"{address}/health").json()
    return found["requests_in_progress"], found["slots_processing"]


@pytest.mark.slow
def test_eight_requests_with_schemas_are_all_answered() -> None:
    with pair(n_parallel=8) as session, serving(session) as address:
        engine, most = session._engine, [0]
        step = engine.step

        def watched(texts: Sequence[Text]) -> None:
            most[0] = max(most[0], sum(text.has_grammar for text in texts))
            step(texts)

        engine.step = watched  # type: ignore[method-assign]
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(ask, address, response_format=schema, prompt=f"# {n}", max_tokens=40)
                for n in range(8)
            ]
            answers = [each.result().json()["choices"][0]["text"] for each in asked]
        assert {json.loads(answer)["n"] for answer in answers} <= {1, 2}
        assert 1 <= most[0] <= GRAMMARS_AT_ONCE
        assert len(session.generate("x", max_tokens=3).tokens) == 3


MOST = max_answer_tokens(20)
LARGE = {"prompt": [1], "logprobs": 20, "max_tokens": MOST - 1, "temperature": 0}
"""A request that needs nearly half of the pool."""


@dataclass(frozen=True)
class Trial:
    may_go_on: threading.Event
    address: str
    server: Server
    waiting: socket.socket
    asked: list[Future[httpx.Response]]


@contextmanager
def large_ones() -> Iterator[Trial]:
    """A server that answers large requests and a small one, while another waits for memory."""
    target = counting(n_texts=4)
    target.info = replace(target.info, n_ctx=2 * MOST)
    begun, may_go_on = holds_passes(target)
    with (
        open_session(target) as session,
        running(session) as (address, server),
        ThreadPoolExecutor(3) as pool,
    ):
        large = [pool.submit(ask, address, **LARGE) for _ in range(2)]
        assert begun.wait(60)
        _until(address, (2, 2))
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as waiting:
            body = json.dumps(LARGE).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            waiting.sendall(head % len(body) + body)
            _until(address, (3, 2))
            small = pool.submit(ask, address)
            _until(address, (4, 3))
            yield Trial(may_go_on, address, server, waiting, [*large, small])


def test_a_client_that_goes_while_it_waits_for_memory_leaves_nothing() -> None:
    with large_ones() as trial:
        trial.waiting.close()
        _until(trial.address, (3, 3))
        trial.may_go_on.set()
        assert [each.result().status_code for each in trial.asked] == [200] * 3
        until_idle(trial.address)
        assert ask(trial.address, **LARGE).status_code == 200


def _until(address: str, expected: tuple[int, int]) -> None:
    """Wait until so many requests are under way, and so many of them have a slot."""
    while slots(address) != expected:
        pass


@pytest.mark.slow
def test_eight_large_schemas_at_once_stay_within_the_budget() -> None:
    fields = {
        f"field_number_{n}": {"type": "string", "pattern": "[a-z]{3,200}@[a-z]+\\.(com|org)"}
        for n in range(140)
    }
    schema = {"name": "n", "schema": {"type": "object", "properties": fields}}
    with start("-np", "8", "-c", "512", "--memory-budget", "210MiB") as process:
        address = address_of(process)
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(
                    ask,
                    address,
                    prompt=f"# {n}",
                    max_tokens=48,
                    response_format={"type": "json_schema", "json_schema": schema},
                )
                for n in range(8)
            ]
            assert [each.result().status_code for each in asked] == [200] * 8
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert 1024 * int(status.partition("VmHWM:")[2].split()[0]) <= 210 << 20
        process.terminate()
        process.stderr.read()
