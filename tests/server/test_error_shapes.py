"""Errors have the shape of the protocol that they are asked in, whoever refuses the request."""

import socket
from urllib.parse import urlsplit

import httpx
import pytest

from edgespec.server.guarding import Guard
from edgespec.server.lifetime import Server
from server_running import at_address, serving

MESSAGES = ["/v1/messages", "/v1/messages/", "/messages/count_tokens", "/v1/messages/batches"]
OTHERS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/nothing"]
KEY = "secret"


def kind_of(answer: httpx.Response) -> str:
    """The kind of the error of `/v1/messages`, or of OpenAI's protocols."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if answer.url.path in MESSAGES:
        assert body["type"] == "error"
        assert body["request_id"] == answer.headers["x-request-id"]
        assert set(body["error"]) == {"type", "message"}
    else:
        assert {"message", "type", "param", "code"} <= set(body["error"])
    assert body["error"]["message"]
    return body["error"]["type"]


@pytest.fixture(scope="module")
def client(session):
    headers = {"X-Api-Key": KEY}
    with (
        serving(session, Guard("127.0.0.1", KEY), max_body=1000) as address,
        httpx.Client(base_url=address, headers=headers) as one,
    ):
        yield one


@pytest.mark.parametrize("path", MESSAGES + OTHERS)
def test_a_model_that_loads_refuses_in_the_protocol_of_the_path(path):
    with at_address(Server(Guard("127.0.0.1"))) as address:
        answer = httpx.post(address + path, json={})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert kind_of(answer) == ("overloaded_error" if path in MESSAGES else "unavailable_error")


@pytest.mark.parametrize("path", MESSAGES + OTHERS)
def test_the_front_refuses_in_the_protocol_of_the_path(client, path):
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        answer = client.post(path, headers=headers, json={})
        assert answer.status_code == 403
        assert kind_of(answer) == "permission_error"


@pytest.mark.parametrize("path", [*MESSAGES[:3], *OTHERS[:3]])
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"X-Api-Key": "wrong"}, b"{}", 401),
        ({}, b"{", 400),
        ({}, b"{}", 400),
        ({}, b"\xff", 400),
        ({}, b" " * 1001, 413),
    ],
)
def test_a_bad_request_is_told_in_its_protocol(client, path, headers, body, status):
    answer = client.post(path, headers=headers, content=body)
    assert answer.status_code == status
    assert kind_of(answer) in ("authentication_error", "invalid_request_error", "request_too_large")


def test_a_body_that_turns_bad_behind_its_refusal_is_no_failure(client, caplog):
    """It had been answered once more, which the connection did not allow: a traceback."""
    url = urlsplit(str(client.base_url))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nX-Api-Key: {KEY}\r\n"
    body = b"7D0\r\n" + b"a" * 2000 + b"\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=30) as one:
        one.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        said = one.recv(4096)
        one.sendall(b"zz\r\n")
        while part := one.recv(4096):
            said += part
    assert said.startswith(b"HTTP/1.1 413")
    assert not caplog.records
