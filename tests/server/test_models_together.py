"""A server whose budget holds all of its models: they stay, and write at once."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import httpx
import pytest

from edgespec.cli.console import Console
from edgespec.cli.model_list import ModelList
from gguf_files import tiny_llama
from server_running import serving_list


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelList:
    folder = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        tiny_llama().write(folder / f"{name}.gguf")
    args = Namespace(memory_budget="64GiB", quiet=True, models_dir=str(folder))
    return ModelList(args, Console(quiet=True), None, n_parallel="1")


@pytest.fixture(scope="module")
def client(models: ModelList) -> Iterator[httpx.Client]:
    with serving_list(models) as url, httpx.Client(base_url=url, timeout=60) as found:
        yield found


def ask(client: httpx.Client, model: str) -> httpx.Response:
    body = {"model": model, "prompt": "one", "max_tokens": 2}
    return client.post("/v1/completions", json=body)


def test_none_leaves_for_another(client: httpx.Client) -> None:
    for name in ("one", "two", "one"):
        assert ask(client, name).json()["model"] == name
    assert "Server-Timing" not in ask(client, "two").headers
    states = [one["status"]["value"] for one in client.get("/v1/models").json()["data"]]
    assert states == ["loaded", "loaded"]


def test_one_writes_while_the_other_does(client: httpx.Client) -> None:
    ask(client, "two")
    body = {"model": "one", "prompt": "one", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert ask(client, "two").status_code == 200
        health = client.get("/health").json()
        assert health["slots_idle"] + health["slots_processing"] == 2


def test_a_shared_budget_stays(client: httpx.Client) -> None:
    ask(client, "one")
    refused = client.post("/v1/budget", json={"memory_budget": "1GiB"})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "budget_shared"


def test_models_that_do_not_fit_take_turns(models: ModelList) -> None:
    args = Namespace(**vars(models._args) | {"memory_budget": "20MiB"})
    assert models.together
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.memory.process.resolve_budget", lambda _: 20 << 20)
        assert not ModelList(args, Console(quiet=True), None, n_parallel="1").together


def test_texts_at_once_that_were_asked_for_count_in_what_a_model_needs(models: ModelList) -> None:
    """Models that fit together for one text each had been refused for want of room when they were
    asked for, where taking turns would have answered."""
    several = ModelList(models._args, Console(quiet=True), None, n_parallel="4")
    for alone, one in zip(models.models, several.models, strict=True):
        assert one.beside_bytes > alone.beside_bytes
        assert one.smallest_bytes > alone.smallest_bytes
    chosen = ModelList(models._args, Console(quiet=True), None, n_parallel="auto")
    assert chosen.models[0].beside_bytes == models.models[0].beside_bytes
