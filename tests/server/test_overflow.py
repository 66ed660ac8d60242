"""Prompts longer than the context: one wording and OpenAI's code, wherever they are noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edgespec.session.session import Session
from server_running import pair, serving

N_CTX = 256
LONG = "word " * 400
FAR_TOO_LONG = "word " * 8_000
SAID = (
    r"the prompt is too long: this model's maximum context length is 256 tokens, "
    r"and the prompt has (at least )?[\d,]+: "
    r"shorten it or, where the model was trained on more, raise (`ctx_size`|--ctx-size)"
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair(ctx_size=N_CTX) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[httpx.Client]:
    with serving(session) as address, httpx.Client(base_url=address) as opened:
        yield opened


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", chat(LONG), "messages"),
        ("chat/completions", chat(FAR_TOO_LONG), "messages"),
        ("completions", {"prompt": LONG}, "prompt"),
        ("completions", {"prompt": FAR_TOO_LONG}, "prompt"),
        ("completions", {"prompt": [5] * 300}, "prompt"),
        ("completions", {"prompt": ["a", LONG]}, "prompt.1"),
    ],
)
def test_the_server_answers_with_openais_code_and_the_numbers(
    client: httpx.Client, path: str, body: dict[str, Any], param: str, streams: bool
) -> None:
    response = client.post(f"/v1/{path}", json=body | {"stream": streams})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert error["param"] == param
    assert error["n_ctx"] == N_CTX
    assert error["n_prompt_tokens"] > N_CTX
    assert re.match(SAID, error["message"])
    assert error["message"].endswith("--ctx-size")
