"""Faults of clients are answered as theirs, and the server goes on."""

import json

import httpx
import pytest

from edgespec.server.guarding import Guard
from sentences import hold_sentence
from server_running import serving

MESSAGES = [{"role": "user", "content": "write gcd"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client(session):
    with serving(session) as address, httpx.Client(base_url=address, timeout=60) as http:
        yield http


def refused(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    return response.json()["error"]["message"]


@pytest.mark.parametrize("token", [4096, -1, 999_999, 1 << 31, 1 << 70])
def test_a_number_that_is_no_token_is_refused(client, token):
    """It used to end the process: llama.cpp aborts."""
    message = refused(client.post(TEXT, json={"prompt": [1, token]}))
    assert f"token {token} is unknown: tokens are 0 to 4095" in message
    assert client.get("/health").status_code == 200


def chat(**fields: object) -> dict[str, object]:
    return {"messages": MESSAGES, "max_tokens": 3} | fields


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


@pytest.mark.parametrize(
    "body",
    [
        chat(chat_template_kwargs={"messages": []}),
        chat(chat_template_kwargs={"tools": []}),
        chat(chat_template_kwargs={"self": 1}),
        chat(tools=[tool("\ud800")], tool_choice="required"),
        chat(stop=["\udfff"]),
        chat(model="\ud800"),
        chat(chat_template_kwargs={"a\ud800": 1}),
        chat(repeat_penalty=1e-300),
        chat(repeat_penalty=1e300),
        chat(logit_bias={"7": 1e308}),
        chat(logit_bias={"-7": 1}),
    ],
)
def test_what_cannot_be_meant_is_the_clients_fault(client, body):
    hold_sentence(refused(client.post(CHAT, content=json.dumps(body))))


@pytest.mark.parametrize("origin", ["http://[bad", "null", "http://", "[", "http://a:b:c"])
def test_an_origin_that_is_none_may_not_ask(client, origin):
    answer = client.post(CHAT, json=chat(), headers={"Origin": origin})
    hold_sentence(refused(answer, 403))


def test_a_key_may_have_any_characters(session):
    guard = Guard("127.0.0.1", api_key="schlüssel-鍵")
    with serving(session, guard) as address:
        for key, status in (("schlüssel-鍵", 200), ("schlüssel", 401), ("schl\xfcssel-?", 401)):
            headers = {"Authorization": b"Bearer " + key.encode()}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status
