"""The pass over a prompt's end gives its last token's logits: the same at every budget and batch
size, after every kept prefix, and beside other texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_aligned_texts import opened
from test_gguf_types import quantised
from test_one_text import paged, request_of, resident, wide

from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel, PassPart
from edgespec.registry import ModelRequest
from edgespec.rules.sampling import SamplingParams
from edgespec_runtimes.gguf import runtime
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from gguf_files import U32
from one_tree import ROOT, OneTree
from paging_contract import load_either, load_paged, one_by_one
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import all_species

TOKENS = [20 + 7 * i % 250 for i in range(220)]


def slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


KINDS = ["Q8_0", *map(slow, ("Q4_K_M", "Q2_K", "IQ4_XS"))]
N_FURTHER = 4


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = wide("Q8_0")
    model.metadata["llama.context_length"] = (U32, 512)
    source = model.write(folder / "source.gguf")
    return source if request.param == "Q8_0" else quantised(request.param, folder, source)


def read_to_root(
    model: LanguageModel, tokens: Sequence[int], n_kept: int = 0, slot: int = 0
) -> np.ndarray:
    """Logits after the last of `tokens`, `n_kept` of which were read before; it is committed."""
    if n_kept:
        prefill(model, tokens[:n_kept], slot=slot)
    tree = OneTree(tokens[-1])
    [rows] = model.evaluate([PassPart(slot, tree, [ROOT], tokens[n_kept:-1])])
    rows = rows.copy()
    model.commit(tree, [ROOT], slot=slot)
    assert model.committed_of(slot) == len(tokens)
    return rows


def text_after(model: LanguageModel, n_prompt: int, n_kept: int = 0) -> np.ndarray:
    """Logits of a prompt's last token and of some after it; leaves the model empty."""
    first = read_to_root(model, TOKENS[:n_prompt], n_kept)
    further = one_by_one(model, TOKENS[n_prompt : n_prompt + N_FURTHER])
    model.truncate(0)
    return np.concatenate([first, further])


def test_logits_depend_on_the_prompt_alone(path: Path) -> None:
    """A prompt of 64 tokens is one of tiles if products have them, and one of 63 is not."""
    expected = {}
    for batch_size in (256, 64, 100):
        model = load_either(runtime.prepare(replace(request_of(path), batch_size=batch_size)))
        assert model.info.prompts_give_logits
        for n_prompt in (2, 9, 63, 64, 65, 127, 128, 129, 200):
            logits = text_after(model, n_prompt)
            expected.setdefault(n_prompt, logits)
            assert np.array_equal(logits, expected[n_prompt]), (batch_size, n_prompt)
            for n_kept in {64, 65, n_prompt - 64} if n_prompt >= 128 else ():
                if n_prompt - n_kept >= 64:
                    logits = text_after(model, n_prompt, n_kept)
                    assert np.array_equal(logits, expected[n_prompt]), (n_prompt, n_kept)
        model.close()
    with closing(paged(path)) as model:
        for n_prompt, logits in expected.items():
            assert np.array_equal(text_after(model, n_prompt), logits), n_prompt


def test_by_row_they_are_those_of_a_pass_of_its_own(path: Path) -> None:
    model = resident(path)
    for n_prompt in (9, 63, 150):
        if not 0 < model.info.prompt_tile <= n_prompt:
            first = read_to_root(model, TOKENS[:n_prompt])
            model.truncate(0)
            prefill(model, TOKENS[: n_prompt - 1])
            alone = evaluate(model, OneTree(TOKENS[n_prompt - 1]), [ROOT])
            model.truncate(0)
            assert np.array_equal(first, alone)
    model.close()


def test_beside_other_texts_they_are_those_of_a_text_alone(path: Path) -> None:
    alone, beside = opened(path, 1), opened(path, 3, is_paged=True)
    texts = [TOKENS[n : n + size] for n, size in ((0, 70), (5, 130), (9, 20))]
    expected = []
    for text in texts:
        expected.append([read_to_root(alone, text), one_by_one(alone, TOKENS[:2])])
        alone.truncate(0)
    for slot in (2, 0, 1):
        first = read_to_root(beside, texts[slot], slot=slot)
        assert np.array_equal(first, expected[slot][0])
    trees = [OneTree(TOKENS[0]) for _ in texts]
    rows = beside.evaluate([PassPart(n, tree, [ROOT]) for n, tree in enumerate(trees)])
    for row, (_, further) in zip(rows, expected, strict=True):
        assert np.array_equal(row[0], further[0])
    alone.close()
    beside.close()


@pytest.mark.parametrize("n_tokens", [5, 40])
def test_a_paged_model_reads_its_weights_once_for_a_short_prompt_and_its_first_token(
    n_tokens: int,
) -> None:
    request = ModelRequest(embedded_pair().target, "target", 256, 17, 17, 1, batch_size=64)
    with closing(load_paged(runtime.prepare(request), 0.5)) as model, Engine(model) as engine:
        events = engine.generate(TOKENS[:n_tokens], SamplingParams(), 3)
        assert len([*islice(events, 1)]) == 1
        assert model.paging().passes == 1
        finish(events)
        assert model.paging().passes == 3


SPECIES = {species.name: species for species in all_species()}
OTHERS_WITH_ROOTS = [
    *("cohere2", "deepseek2", "gemma2", "gemma3", "gemma3n", "gpt-oss", "gptneox", "grok"),
    *("llama4", "olmo2", "phi3", "qwen2vl", "qwen3moe", "starcoder2"),
]


@pytest.mark.parametrize("name", ["llama", *map(slow, OTHERS_WITH_ROOTS)])
def test_every_graph_gives_them_beside_rows_without_logits(name: str, tmp_path: Path) -> None:
    """CogVLM's gave those of the first rows."""
    path = write_model(tmp_path / "m.gguf", SPECIES[name])
    prompt = TOKENS[:40]
    with closing(load_either(runtime.prepare(model_request(path)))) as model:
        prefill(model, prompt[:-1])
        alone = evaluate(model, OneTree(prompt[-1]), [ROOT])
        model.truncate(0)
        assert np.array_equal(read_to_root(model, prompt), alone)


@pytest.mark.parametrize("name", ["cogvlm", *map(slow, ("qwen35", "lfm2"))])
def test_other_graphs_have_a_pass_more(name: str, tmp_path: Path) -> None:
    """One gives logits of other rows, hybrids keep the state before a prompt's last tokens."""
    path = write_model(tmp_path / "m.gguf", SPECIES[name])
    with closing(load_either(runtime.prepare(model_request(path)))) as model:
        assert not model.info.prompts_give_logits
