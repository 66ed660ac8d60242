"""The front of the server: request ids, the log, hosts and origins, paths, other protocols."""

import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from edgespec.completions.refusals import Refusal
from edgespec.server.front import AnsweredRequest
from edgespec.server.guarding import Guard
from sentences import refuses
from server_running import serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"prompt": "def f(", "max_tokens": 3}
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def log() -> list[AnsweredRequest]:
    return []


@pytest.fixture(scope="module")
def client(session, log):
    guard = Guard("127.0.0.1", allowed_origins=frozenset({PAGE}))
    with serving(session, guard, log=log.append) as address, httpx.Client(base_url=address) as http:
        yield http


@pytest.fixture
def latest(log):
    """The record of the only request of a test, which is written when its answer has been sent."""
    log.clear()

    def record():
        deadline = time.monotonic() + 20
        while not log and time.monotonic() < deadline:
            time.sleep(0.01)
        return log[-1]

    return record


def test_pages_of_this_machine_may_be_allowed_together(session):
    guard = Guard("127.0.0.1", allowed_origins=frozenset({"localhost"}))
    with serving(session, guard) as address, httpx.Client(base_url=address) as http:
        for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:80"):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            told = http.options("/v1/completions", headers=asked)
            assert told.headers["access-control-allow-origin"] == origin
        for origin in ("http://localhost.evil.com", "http://notlocalhost", "ftp://localhost"):
            assert http.get("/v1/models", headers={"Origin": origin}).status_code == 403


def test_every_answer_has_an_id_of_its_own(client):
    ids = {client.get(path).headers["x-request-id"] for path in ("/health", "/", "/nothing", TEXT)}
    assert len(ids) == 4


def test_a_client_may_choose_the_id(client, latest):
    answer = client.get("/v1/models", headers={"X-Request-Id": "a-1"})
    assert answer.headers["x-request-id"] == latest().id == "a-1"
    assert answer.headers["request-id"] == "a-1"


@pytest.mark.parametrize(
    "fields",
    [
        {"unheard_of": 1},
        {"stream": True, "unheard_of": 1},
        {"stream_options": {"unheard_of": 1}},
        {"unheard_of": {"a": 1}, "other": None},
    ],
)
def test_an_unknown_field_is_named_in_a_header_and_once_in_the_log(client, log, fields):
    log.clear()
    for _ in range(2):
        answer = client.post(TEXT, json=ASK | fields, timeout=60)
        assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "unheard_of")
    assert sum(len(one.ignored) for one in log) <= 1


@pytest.mark.parametrize("name", ["", " ", "a ", "\u00e9 ", "b" * 198 + "  c"])
def test_an_unknown_field_may_have_any_name(client, name):
    """A blank at the end of the header broke the connection."""
    answer = client.post(TEXT, json=ASK | {"stream_options": {name: 1}}, timeout=60)
    assert answer.status_code == 200 and "x-ignored-fields" in answer.headers


def test_a_tool_of_another_type_is_left_out(client):
    tools = [{"type": "custom", "custom": {"name": "a"}}]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": tools}
    answer = client.post(CHAT, json=body)
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "tools.custom")
    assert client.post(CHAT, json=body | {"tool_choice": "required"}).status_code == 400


@pytest.mark.parametrize("given", [b"", b"a b", b"a\xff", b"x" * 129])
def test_an_id_that_would_forge_a_log_is_replaced(client, given):
    answer = client.get("/health", headers={b"X-Request-Id": given})
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_logged_once_with_its_tokens(client, log, latest, stream):
    answer = client.post(TEXT, json=ASK | {"stream": stream}, timeout=60)
    assert answer.status_code == 200
    deadline = time.monotonic() + 60
    while not log and time.monotonic() < deadline:
        time.sleep(0.01)  # the record of a stream follows its end
    (logged,) = log
    assert (logged.method, logged.status, logged.completion_tokens) == ("POST", 200, 3)
    assert logged.prompt_tokens > 0
    assert logged.id == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "status"), [("/v9/secret?key=1", 404), ("/a%0aforged", 404), (TEXT, 405)]
)
def test_a_refusal_is_logged_without_its_query(client, latest, path, status):
    client.get(path)
    assert (latest().status, latest().route) == (status, path.partition("?")[0])
    assert latest().prompt_tokens is None


def test_the_traceback_of_a_failure_is_logged(client, session, log, latest, monkeypatch):
    def fail(request):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(type(session), "submit", lambda self, request: fail(request))
    answer = client.post(TEXT, json=ASK)
    assert answer.status_code == 500
    failed = latest()
    assert failed.id == answer.headers["x-request-id"]
    assert "in fail" in failed.traceback and "ZeroDivisionError: a fault" in failed.traceback


@pytest.mark.parametrize(
    "path", ["/v1/models/", "/models", "/models/", "/metrics/", "//v1/models", "/v1//models", "//"]
)
def test_a_path_answers_with_a_slash_and_without_its_version(client, path):
    answer = client.get(path)
    assert answer.status_code == 200


def test_no_path_sends_anybody_to_the_name_in_the_host_header(client):
    for path in ("/health/", "/v1/models/", "//evil.example/"):
        answer = client.get(path, headers={"Host": "evil.example"})
        assert answer.status_code == 403
        assert "allowed-host" in answer.json()["error"]["message"]
        assert "location" not in answer.headers


def test_what_is_no_http_prints_nothing(client, capfd):
    url = urlsplit(str(client.base_url))
    with socket.create_connection((url.hostname, url.port), timeout=60) as one:
        one.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 400")
    assert capfd.readouterr() == ("", "")


def preflight(client: httpx.Client, origin: str) -> httpx.Response:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    return client.options(CHAT, headers=asked)


def test_a_page_that_is_allowed_may_ask_and_read(client):
    asked = preflight(client, PAGE)
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    for answer in (
        client.get("/v1/models", headers={"Origin": PAGE}),
        client.post(TEXT, json={"prompt": 1.5}, headers={"Origin": PAGE}),
    ):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "Origin"


def test_a_page_that_is_not_allowed_may_not(client):
    for origin in ("https://app.example.evil", "http://app.example", "https://app.example:444"):
        for answer in (
            preflight(client, origin),
            client.get("/health", headers={"Origin": origin}),
        ):
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


def test_nobody_is_allowed_unless_named():
    guard = Guard("127.0.0.1")
    with refuses(Refusal):
        guard.check_origin({"origin": PAGE, "host": "127.0.0.1"})


@pytest.mark.parametrize(
    ("headers", "is_right"),
    [
        ({"x-api-key": "secret"}, True),
        ({"api-key": "secret"}, True),
        ({"authorization": "Bearer secret"}, True),
        ({"x-api-key": "wrong"}, False),
        ({"x-api-key": "Bearer secret"}, False),
        ({}, False),
    ],
)
def test_a_key_may_come_in_a_header_of_its_own(headers, is_right):
    guard = Guard("127.0.0.1", api_key="secret")
    if is_right:
        guard.check_key(headers)
    else:
        with refuses(Refusal) as refusal:
            guard.check_key(headers)
        assert refusal.value.headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.parametrize("path", [TEXT, "/nothing"])
def test_a_client_that_is_still_sending_gets_its_refusal(client, path):
    """The connection broke under the body, which is larger than what sockets hold."""
    url = urlsplit(str(client.base_url))
    n_bytes = 20 << 20
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {n_bytes}\r\n\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=60) as one:
        one.sendall(head.encode() + bytes(n_bytes))
        assert one.recv(100).split()[1] == (b"413" if path == TEXT else b"404")
