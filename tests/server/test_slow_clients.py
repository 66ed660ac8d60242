"""Clients that keep a server waiting are sent away, and others are answered meanwhile."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from edgespec.server.lifetime import ClientLimits
from server_running import pair, serving

TEXT = "/v1/completions"
ASK = {"prompt": "def f(", "max_tokens": 2}
SHORT = ClientLimits(headers_s=0.5, body_s=0.5, answer_s=0.5, connections=3)
LONG = ClientLimits(connections=3)


@pytest.fixture(scope="module")
def session():
    with pair() as loaded:
        yield loaded


@contextlib.contextmanager
def clients(address: str, n: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections, on each of which `first` was sent."""
    url = urlsplit(address)
    with contextlib.ExitStack() as stack:
        open_ = []
        for _ in range(n):
            one = stack.enter_context(socket.create_connection((url.hostname, url.port), 10))
            if first:
                one.sendall(first)
            open_.append(one)
        yield open_


def last_words(one: socket.socket) -> bytes:
    """The server's answer until it has nothing more to say; waits for that."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := one.recv(4096):
            said += part
    return said


def drip(one: socket.socket, piece: bytes) -> None:
    """Send the piece again and again until the server has enough of it."""
    with contextlib.suppress(ConnectionError):
        for _ in range(600):
            one.sendall(piece)
            time.sleep(0.05)
        pytest.fail("the server would listen for ever")


def begun_body(address: str, length: int) -> bytes:
    host = urlsplit(address).netloc
    return (
        f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n" + '{"prompt": "'
    ).encode()


def assert_answers(address: str) -> None:
    assert httpx.post(address + TEXT, json=ASK, timeout=120).status_code == 200
    assert httpx.get(f"{address}/health").status_code == 200


def test_connections_far_above_the_limit_are_closed_at_once(session):
    """Each may take memory for headers that never end."""
    with serving(session, limits=LONG, queue=0) as address, clients(address, 9) as many:
        assert last_words(many[-1]) == b""


@pytest.mark.parametrize("begun", [False, True], ids=["idle", "body"])
def test_connections_that_send_nothing_make_way_in_time(session, begun):
    """They have no place in the queue, either: that is for requests that have come."""
    with serving(session, limits=SHORT, queue=0) as address:
        first = begun_body(address, 1000) if begun else b""
        with clients(address, 60, first) as many:
            for one in many:
                last_words(one)
            assert_answers(address)


def test_headers_have_a_time(session):
    """However steadily they come."""
    with (
        serving(session, limits=SHORT) as address,
        clients(address, 1, b"GET / HTTP/1.1\r\n") as (one,),
    ):
        began = time.monotonic()
        drip(one, b"X-A: 1\r\n")
        assert time.monotonic() - began < 20


def test_a_body_has_a_time(session):
    with (
        serving(session, limits=SHORT) as address,
        clients(address, 1, begun_body(address, 1000)) as (one,),
    ):
        said = last_words(one)
        assert said.startswith(b"HTTP/1.1 408")
        assert b"did not come within 0.5 s" in said


def test_what_comes_after_a_refusal_keeps_no_connection(session):
    with (
        serving(session, max_body=100, limits=SHORT) as address,
        clients(address, 1, begun_body(address, 1000)) as (one,),
    ):
        assert one.recv(4096).startswith(b"HTTP/1.1 413")
        drip(one, b"a")


@pytest.mark.slow
def test_who_takes_no_answer_does_not_keep_the_session(session):
    body = json.dumps({"prompt": "a", "max_tokens": 250, "stream": True, "logprobs": 20})
    host = "127.0.0.1"
    with serving(session, limits=SHORT) as address:
        request = (
            f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        url = urlsplit(address)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((url.hostname, url.port))
            one.sendall(request)
            assert_answers(address)


def test_bodies_have_room_for_some(session):
    """Without one, others are told to come again until those that take long have had their time."""
    with serving(session, max_body=1000, limits=ClientLimits(body_s=2)) as address:
        begun = begun_body(address, 1000) + b"a" * 900
        with clients(address, 12, begun) as slow:
            said = [one.recv(4096) for one in slow]
            assert {one[:12] for one in said} == {b"HTTP/1.1 503", b"HTTP/1.1 408"}
            assert all((b"retry-after" in one.lower()) == (b" 503 " in one) for one in said)
            assert_answers(address)


def test_a_connection_that_is_used_is_kept(session):
    with serving(session, limits=SHORT) as address, httpx.Client(base_url=address) as http:
        for _ in range(3):
            assert http.post(TEXT, json=ASK, timeout=120).status_code == 200
            time.sleep(0.3)
