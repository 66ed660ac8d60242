"""Passes of equally many rows where a GPU computes, which rounds by their number; without a GPU an
RPC server's device is in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_gguf_turns import n_rows

from edgespec.models.embedded import embedded_pair
from edgespec.ports import PassPart
from edgespec.runtimes import ModelRequest
from edgespec.session import session
from edgespec.session.opening import plan
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context_choice import PASS_ROWS, PROMPT_ROWS
from edgespec_runtimes.gguf.llama import ggml
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.options import GgufOptions
from one_tree import ROOT, OneTree

__all__ = ["n_rows"]

PAIR = embedded_pair()
ON_GPU = {"n_gpu_layers": 3, "equal_passes": True}
PROMPT = "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n\ndef lcm(a, b):"


pytestmark = pytest.mark.usefixtures("gpu_device")


@pytest.fixture
def model() -> Iterator[GgufModel]:
    options = GgufOptions(n_gpu_layers=3, equal_passes=True)
    request = ModelRequest(PAIR.target, "target", 256, 17, 17, 1, options=options)
    with closing(runtime.prepare(request)) as prepared, closing(prepared.load(None)) as model:
        assert isinstance(model, GgufModel)
        yield model


def line(tokens: list[int]) -> OneTree:
    tree = OneTree(tokens[0], len(tokens))
    for parent, token in enumerate(tokens[1:]):
        tree.add(parent, token, 1.0)
    return tree


def test_a_model_on_a_gpu_takes_lines_of_one_size(model: GgufModel):
    assert model.info.max_nodes == PASS_ROWS
    assert model.info.max_branches == 1
    assert model.info.prompt_tile == model.info.prompt_batch == PROMPT_ROWS


@pytest.mark.parametrize("n_read", [1, PROMPT_ROWS - 1, PROMPT_ROWS, 40])
def test_every_pass_has_as_many_rows(model: GgufModel, n_rows: list[int], n_read: int):
    tokens = (model.vocabulary.encode(PROMPT) * 2)[: n_read + 4]
    model.evaluate([PassPart(0, reads=tokens[:n_read])])
    assert {*n_rows} == {PROMPT_ROWS if n_read >= PROMPT_ROWS else PASS_ROWS}
    assert model.committed_of(0) == n_read
    n_rows.clear()
    for n_nodes in (1, 3, PASS_ROWS):
        tree = line([*tokens[n_read:], *tokens][:n_nodes])
        (logits,) = model.evaluate([PassPart(0, tree, range(n_nodes))])
        assert logits.shape == (n_nodes, model.info.n_vocab)
        assert model.last_report.n_tokens == n_nodes
        model.truncate(n_read)
    assert n_rows == [PASS_ROWS] * 3


def test_logits_are_those_of_the_nodes(model: GgufModel):
    tokens = model.vocabulary.encode(PROMPT)
    begin, tail = tokens[:20], tokens[20:24]
    model.evaluate([PassPart(0, reads=begin)])
    one_by_one = []
    for token in tail:
        tree = line([token])
        (logits,) = model.evaluate([PassPart(0, tree, [ROOT])])
        one_by_one.append(logits[0].copy())
        model.commit(tree, [ROOT])
    model.truncate(len(begin))
    (together,) = model.evaluate([PassPart(0, line(tail), range(4))])
    assert np.array_equal(together, one_by_one)


def test_a_text_may_fill_its_context(model: GgufModel, n_rows: list[int]):
    n_ctx = model.info.n_ctx
    tokens = (model.vocabulary.encode(PROMPT) * 20)[:n_ctx]
    model.evaluate([PassPart(0, reads=tokens[:-1])])
    tree = line(tokens[-1:])
    model.evaluate([PassPart(0, tree, [ROOT])])
    model.commit(tree, [ROOT])
    assert model.committed_of(0) == n_ctx
    assert n_rows[-1] == PASS_ROWS


def texts(draft: Path | None, prompts: list[str], temp: float, seeds: int = 1) -> list[list[int]]:
    load = LoadSettings.model_validate(
        {
            "model": PAIR.target,
            "draft": draft,
            "memory_budget": "2GiB",
            "ctx_size": 256,
            **ON_GPU,
        }
    )
    with session.load(load) as loaded:
        return [
            loaded.generate(prompt, SamplingParams(temperature=temp, seed=seed), 32).tokens
            for prompt in prompts
            for seed in range(seeds)
        ]


@pytest.mark.costly
@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_guesses_and_earlier_texts_change_nothing(n_rows: list[int], temp: float):
    prompts = ["def f(", PROMPT, PROMPT + " return", PROMPT[:30]]
    alone = [text for prompt in prompts for text in texts(None, [prompt], temp)]
    assert {*n_rows} == {PASS_ROWS, PROMPT_ROWS}
    assert texts(None, prompts, temp) == alone
    assert texts(PAIR.draft, prompts, temp) == alone


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_a_note_on_rounding_is_left_out_where_it_was_tried(
    backend: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ggml, "backend_of", lambda _: backend)
    load = LoadSettings.model_validate(
        {"model": PAIR.target, "draft": PAIR.draft, "memory_budget": "1GiB", **ON_GPU}
    )
    notes = " ".join(plan(load).notes)
    assert ("rounds several rows otherwise" in notes) is (backend != "CUDA")


def test_several_texts_at_once_and_equal_passes_are_asked_for():
    options = GgufOptions(n_gpu_layers=3, equal_passes=True)
    request = ModelRequest(PAIR.target, "target", 256, 17, 17, 1, n_slots=2, options=options)
    with closing(runtime.prepare(request)) as prepared:
        assert prepared.info.max_nodes == 17
    one = replace(request, n_slots=1, options=GgufOptions(n_gpu_layers=3))
    with closing(runtime.prepare(one)) as prepared:
        assert prepared.info.max_nodes == 17
    load = {"model": PAIR.target, "ctx_size": 256, "n_parallel": "auto", **ON_GPU}
    found = plan(LoadSettings.model_validate({"memory_budget": "1GiB", **load}))
    assert found.n_parallel == 1
    assert "one text at a time" in " ".join(found.notes)
