"""A port that answers while its model loads, and the server that takes it over."""

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from edgespec.server.connections import ClientLimits
from edgespec.server.guarding import Guard
from edgespec.server.lifetime import answered_while_loading


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def loading(listener: socket.socket, guard: Guard | None = None):
    return answered_while_loading(
        listener, guard or Guard("127.0.0.1"), limits=ClientLimits(connections=4)
    )


@pytest.mark.parametrize("path", ["/health", "/", "/v1/models", "/nothing/"])
def test_a_model_that_loads_says_when_to_come_again(path):
    with listening() as (listener, address), loading(listener):
        answer = httpx.get(address + path)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "loading"
    assert "the model is loading: try again in" in answer.json()["error"]["message"]


def test_a_browser_gets_a_page_that_waits():
    with listening() as (listener, address), loading(listener):
        answer = httpx.get(address, headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("text/html")
    assert 'http-equiv="refresh"' in answer.text


def test_progress_is_told_to_browsers_and_clients():
    with listening() as (listener, address):
        guard = Guard("127.0.0.1")
        doing = lambda: ("reading <weights>", 0.43)  # noqa: E731
        with answered_while_loading(listener, guard, doing=doing):
            shown = httpx.get(address, headers={"Accept": "text/html"}).text
            told = httpx.get(address + "/v1/models").json()["error"]["message"]
    assert 'value="0.43"' in shown
    assert "<p>reading &lt;weights&gt;</p>" in shown
    assert told.startswith("the model is loading: reading <weights>, 43%: try again in")


def test_who_comes_between_waits_for_the_server():
    with listening() as (listener, address):
        with loading(listener):
            pass
        url = httpx.URL(address)
        with socket.create_connection((url.host, url.port), timeout=60) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with loading(listener):
                assert one.recv(100).startswith(b"HTTP/1.1 503")


def test_a_failure_while_loading_frees_the_port():
    with listening() as (listener, address):
        with pytest.raises(ZeroDivisionError), loading(listener):
            raise ZeroDivisionError
        listener.close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
