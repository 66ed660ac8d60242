"""A server of several models: two that write and one that embeds, as clients see it."""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from edgespec.cli.console import Console
from edgespec.cli.model_list import ModelList
from edgespec.errors import BudgetError
from edgespec.memory import process
from embedding_files import write_encoder
from gguf_files import tiny_llama
from sentences import refuses
from server_running import serving_list

if TYPE_CHECKING:
    import openai  # two seconds, in every process that collects tests

BUDGET = "400MiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    tiny_llama().write(found / "one.gguf")
    tiny_llama().write(found / "two.gguf")
    write_encoder(found / "vectors.gguf")
    (found / "broken.gguf").write_bytes(b"GGUF, cut short")
    (found / "mmproj-one.gguf").write_bytes(b"of another model")
    return found


def listed(**flags: object) -> ModelList:
    args = Namespace(memory_budget=BUDGET, quiet=True, **flags)
    return ModelList(args, Console(quiet=True), None, n_parallel="1")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    models = listed(models_dir=str(folder))
    for model in models.models:  # as with a budget that holds one at a time
        model.stays = model.embeds
    with serving_list(models) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "one", "max_tokens": 2}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


@pytest.mark.slow
def test_the_list_has_all_models_with_what_they_need(url: str) -> None:
    found = {one["id"]: one for one in httpx.get(f"{url}/v1/models").json()["data"]}
    assert list(found) == ["broken", "one", "two", "vectors"]
    assert found["vectors"]["kind"] == "embedding"
    for name in ("one", "two", "vectors"):
        assert found[name]["smallest_budget_bytes"] > found[name]["size_bytes"] > 0
    assert found["broken"]["status"]["failed"]


@pytest.mark.slow
def test_each_request_is_answered_by_the_model_that_it_names(url: str) -> None:
    for name in ("one", "two.gguf", "one"):
        answer = ask(url, name)
        assert answer.json()["model"] == name.removesuffix(".gguf")
        state = httpx.get(f"{url}/v1/models/{name}").json()["status"]
        assert state == {"value": "loaded"}


MESSAGES = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 1}
REQUESTS = {
    "chat/completions": MESSAGES,
    "completions": {"prompt": "one"},
    "responses": {"input": "one"},
    "embeddings": {"input": "one"},
    "messages": MESSAGES,
    "messages/count_tokens": MESSAGES,
}
"""A request for each route that takes a model's name."""


def test_an_unknown_model_is_a_404_in_every_protocols_form(url: str) -> None:
    answers = {
        route: httpx.post(f"{url}/v1/{route}", json=body | {"model": "x"})
        for route, body in REQUESTS.items()
    }
    answers["models/x"] = httpx.get(f"{url}/v1/models/x")
    for route, answer in answers.items():
        assert answer.status_code == 404, route
        error = answer.json()["error"]
        assert "no model 'x'" in error["message"]
        if route.startswith("messages"):
            assert (answer.json()["type"], error["type"]) == ("error", "not_found_error")
        else:
            assert error["code"] == "model_not_found"


def test_a_text_without_a_model_is_refused_and_vectors_are_the_only_ones(url: str) -> None:
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": "one"}, timeout=60)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "model"
    assert httpx.post(f"{url}/v1/embeddings", json={"input": "one"}, timeout=60).is_success


def test_a_broken_model_is_an_error_and_the_server_lives(url: str) -> None:
    ask(url, "one")
    refused = ask(url, "broken")
    assert refused.status_code == 500
    assert "\n" not in refused.json()["error"]["message"]
    assert httpx.get(f"{url}/v1/models/one").json()["status"]["value"] == "loaded"


def test_embeddings_are_of_length_one_and_the_same_in_both_formats(
    client: openai.OpenAI, url: str
) -> None:
    texts = ["hello world", "a b c"]
    floats = client.embeddings.create(model="vectors", input=texts, encoding_format="float")
    decoded = client.embeddings.create(model="vectors", input=texts)  # base64 on the wire
    assert [one.index for one in floats.data] == [0, 1]
    assert [one.embedding for one in floats.data] == [one.embedding for one in decoded.data]
    assert np.linalg.norm(floats.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert floats.usage.prompt_tokens == floats.usage.total_tokens > 4
    body = {"model": "vectors", "input": "hello world", "encoding_format": "base64"}
    raw = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).json()["data"][0]["embedding"]
    values = np.frombuffer(base64.b64decode(raw), "<f4")
    assert values.tolist() == floats.data[0].embedding


def test_an_embedding_model_answers_beside_a_model_that_writes(url: str) -> None:
    ask(url, "one")
    body = {"model": "vectors", "input": [[2, 5, 3]]}
    assert httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).status_code == 200
    assert httpx.get(f"{url}/v1/models/one").json()["status"]["value"] == "loaded"


@pytest.mark.parametrize("together", [False, True])
def test_a_model_comes_beside_one_that_takes_much_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The headroom has a share of the process, for which there was no room: weights were streamed,
    and all vectors refused beside a model of 1 GiB."""
    models = listed(models_dir=str(folder))
    for model in models.models:
        model.stays = together or model.embeds
    vectors = next(one for one in models.models if one.name == "vectors")
    monkeypatch.setattr(process, "footprint_bytes", lambda: 2 << 30)
    with models.load(vectors, lambda *_: None) as loaded:
        assert loaded.plan.streamed_bytes == 0


@pytest.mark.parametrize(
    "fields",
    [{"truncate": True}, {"truncate": "END"}, {"truncate_prompt_tokens": -1}],
)
def test_a_text_that_is_too_long_is_cut_where_that_is_asked_for(
    url: str, fields: dict[str, object]
) -> None:
    body = {"model": "vectors", "input": "hello " * 9_000, **fields}
    answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 200
    n_tokens = answer.json()["usage"]["prompt_tokens"]
    short = httpx.post(f"{url}/v1/embeddings", json=body | {"truncate_prompt_tokens": 3})
    assert n_tokens > short.json()["usage"]["prompt_tokens"] == 3


def test_a_model_of_the_wrong_kind_is_refused(url: str) -> None:
    assert ask(url, "vectors").json()["error"]["code"] == "wrong_kind_of_model"
    body = {"model": "one", "input": "x"}
    refused = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60)
    assert refused.json()["error"]["code"] == "wrong_kind_of_model"


@pytest.mark.slow
def test_a_budget_that_a_client_gave_holds_for_the_models_that_follow(url: str) -> None:
    """The next model had been loaded with the budget of the command line."""
    ask(url, "one")
    given = httpx.post(f"{url}/v1/budget", json={"memory_budget": "500MiB"}, timeout=60)
    assert given.json()["budget_bytes"] == 500 << 20
    assert ask(url, "two").status_code == 200
    assert httpx.get(f"{url}/v1/budget").json()["budget_bytes"] == 500 << 20


def test_json_that_is_broken_is_refused_before_a_model_is_loaded(url: str) -> None:
    refused = httpx.post(f"{url}/v1/completions", content=b'{"model": ', timeout=60)
    assert refused.status_code == 400
    assert "not JSON" in json.loads(refused.text)["error"]["message"]


@pytest.mark.slow
def test_why_a_model_cannot_be_loaded_is_said_in_flags(tmp_path: Path) -> None:
    (tmp_path / "gone.gguf").symlink_to("nowhere")
    (model,) = listed(models_dir=str(tmp_path)).models
    assert model.error and model.error.endswith("with --model or --model-draft")


def test_the_first_model_that_is_named_has_to_fit(folder: Path) -> None:
    args = Namespace(model=[str(folder / "one.gguf"), str(folder / "two.gguf")])
    args.memory_budget, args.quiet = "20MiB", True
    with refuses(BudgetError, figures=False):
        ModelList(args, Console(quiet=True), None)
