"""Routes of llama.cpp's and Ollama's servers, which editors and tests of others ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edgespec.server.guarding import Guard
from edgespec.server.other_servers import _function, _messages
from edgespec.session.session import Session
from server_running import serving

HELLO = [{"role": "user", "content": "one"}]


@pytest.fixture(scope="module")
def client(session: Session) -> Iterator[httpx.Client]:
    with (
        serving(session, Guard("127.0.0.1")) as address,
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        yield http


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200
    lines = answer.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_llama_cpps_own_completion(client: httpx.Client) -> None:
    asked = {"prompt": "def f(", "n_predict": 4}
    whole = client.post("/completion", json=asked).json()
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 4)
    assert whole["stop"] is True and whole["timings"]["predicted_n"] == 4
    *parts, last = streamed(client.post("/completion", json=asked | {"stream": True}))
    assert "".join(part["content"] for part in [*parts, last]) == whole["content"]
    assert last["stop"] is True and not any(part["stop"] for part in parts)


def test_a_limit_of_null_is_none(client: httpx.Client) -> None:
    asked = {"prompt": "def f(", "stop": [":"]}
    told = client.post("/completion", json=asked | {"n_predict": None}).json()
    assert told["generation_settings"]["n_predict"] > 1 << 30


def test_probabilities_of_llama_cpps_own_completion(client: httpx.Client) -> None:
    answer = client.post("/completion", json={"prompt": "a", "n_predict": 2, "n_probs": 3}).json()
    told = answer["completion_probabilities"]
    assert [len(one["top_logprobs"]) for one in told] == [3, 3]
    assert all({"id", "token", "logprob", "bytes"} <= one["top_logprobs"][0].keys() for one in told)


def test_prompts_of_llama_cpps_own_completion(client: httpx.Client) -> None:
    def written(prompt: Any) -> Any:
        asked = {"prompt": prompt, "n_predict": 3, "temperature": 0, "return_tokens": True}
        return client.post("/completion", json=asked).json()

    tokens = client.post("/tokenize", json={"content": "def f(", "add_special": True}).json()
    one = written("def f(")
    assert len(one["tokens"]) == 3 and one["prompt"] == "def f("
    both = written([tokens["tokens"], {"prompt_string": "def f("}])
    assert [text["tokens"] for text in both] == [one["tokens"]] * 2
    assert written(["def f(", *one["tokens"]])["tokens_evaluated"] == len(tokens["tokens"]) + 3
    spelled = client.post("/detokenize", json={"tokens": [0]}).json()["content"]
    assert spelled and written([0, *tokens["tokens"]])["prompt"] == f"{spelled}def f("


def test_settings_and_chosen_fields_of_llama_cpps_own_completion(client: httpx.Client) -> None:
    asked = {"prompt": "def f(", "n_predict": 2, "logit_bias": [["x", False], [3, 1.5]]}
    chosen = ["generation_settings/logit_bias", "generation_settings/n_predict", "index"]
    told = client.post("/completion", json=asked | {"response_fields": chosen}).json()
    assert [*told] == chosen and told["generation_settings/n_predict"] == 2
    assert {"token": 3, "bias": 1.5} in told["generation_settings/logit_bias"]
    seed = client.post("/completion", json=asked).json()["generation_settings"]["seed"]
    asked |= {"seed": seed, "response_fields": ["content"], "n_predict": 9}
    assert (
        client.post("/completion", json=asked).json()
        == client.post("/completion", json=asked).json()
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"response_fields": "content"},
        {"prompt": {"prompt_string": "a", "multimodal_data": ["AA=="]}},
        {"prompt": ["a", 1, {}]},
        {"logit_bias": [[1, 2, 3]]},
        {"logit_bias": 3},
    ],
)
def test_fields_of_another_kind_are_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 400


def test_what_the_server_is_told_in_llama_cpps_form(client: httpx.Client) -> None:
    props = client.get("/props").json()
    n_ctx = props["default_generation_settings"]["n_ctx"]
    assert props["chat_template"] and props["modalities"] == {"vision": False, "audio": False}
    assert [slot["n_ctx"] for slot in client.get("/slots").json()] == [n_ctx] * props["total_slots"]
    prompt = client.post("/apply-template", json={"messages": HELLO}).json()["prompt"]
    assert "one" in prompt
    told = client.post("/chat/completions/input_tokens", json={"messages": HELLO}).json()
    tokens = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
    assert told["input_tokens"] >= len(tokens)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/infill", {"input_prefix": "def f(", "input_suffix": "return x"}),
        ("/v1/completions", {"prompt": "def f(", "suffix": "return x"}),
    ],
)
def test_a_model_that_cannot_fill_in_the_middle_says_so(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    error = client.post(path, json=fields).json()["error"]
    assert "no tokens for filling in the middle" in error["message"]


def test_ranking_is_refused_by_name(client: httpx.Client) -> None:
    answer = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert answer.status_code == 400 and "/v1/embeddings" in answer.json()["error"]["message"]


def test_models_in_ollamas_form(client: httpx.Client) -> None:
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == "pair" and client.get("/api/version").json()["version"]
    shown = client.post("/api/show", json={"model": "pair"}).json()
    assert shown["capabilities"] == ["completion", "tools"]
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] > 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "one"}),
     ("/api/generate", {"prompt": "one", "raw": True})],
)  # fmt: skip
def test_answers_in_ollamas_form(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    def text(line: dict[str, Any]) -> str:
        return line["message"]["content"] if path == "/api/chat" else line["response"]

    asked = {"model": "pair", "options": {"num_predict": 4, "num_ctx": 9}} | fields
    whole = client.post(path, json=asked | {"stream": False}).json()
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 4)
    answer = client.post(path, json=asked)
    assert answer.headers["content-type"] == "application/x-ndjson"
    *parts, last = streamed(answer)
    assert "".join(map(text, [*parts, last])) == text(whole)
    assert last["done"] is True and last["eval_count"] == 4
    assert not any(part["done"] for part in parts)


def test_a_schema_in_ollamas_form(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    asked = {"model": "pair", "messages": HELLO, "stream": False, "format": schema}
    message = client.post("/api/chat", json=asked).json()["message"]
    assert json.loads(message["content"]) == {"a": 1}


def test_a_call_in_ollamas_form(client: httpx.Client) -> None:
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "2"},
    ]
    asked = {"model": "pair", "messages": messages, "options": {"num_predict": 1}}
    assert streamed(client.post("/api/chat", json=asked))[-1]["done"] is True


def test_a_result_in_ollamas_form_belongs_to_the_call_of_its_name() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("a", "b")]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("b", "a")]
    asked = [*HELLO, {"role": "assistant", "tool_calls": calls}, *results] * 2
    turns = _messages(asked)
    first, second = [[call["id"] for call in turns[n]["tool_calls"]] for n in (1, 5)]
    assert [turns[n]["tool_call_id"] for n in (2, 3, 6, 7)] == [*first[::-1], *second[::-1]]
    assert not {*first} & {*second}


@pytest.mark.parametrize(
    "fields",
    [
        *({"messages": wrong} for wrong in ([], 5, [5], [HELLO[0] | {"tool_calls": 5}])),
        *({"messages": HELLO, "options": wrong} for wrong in (5, {"num_predict": "x"})),
    ],
)
def test_an_error_in_ollamas_form(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post("/api/chat", json=fields)
    assert answer.status_code == 400 and isinstance(answer.json()["error"], str)


def test_pictures_are_refused_and_no_prompt_loads_the_model(client: httpx.Client) -> None:
    asked = {"model": "pair", "stream": False}
    images = {"images": ["aGVsbG8="]}
    for path, more in (
        ("/api/generate", {"prompt": "What is it?"} | images),
        ("/api/chat", {"messages": [HELLO[0] | images]}),
    ):
        refused = client.post(path, json=asked | more)
        assert refused.status_code == 400 and "images: models here" in refused.json()["error"]
    loaded = client.post("/api/generate", json=asked)
    assert (loaded.status_code, loaded.json()["response"]) == (200, "")


@pytest.mark.parametrize("arguments", ["", '{"a": "b'])
def test_a_call_that_was_cut_off_is_none_of_ollamas(arguments: str) -> None:
    assert _function({"name": "f", "arguments": arguments}) == {}
