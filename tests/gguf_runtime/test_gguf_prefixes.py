"""A text is the same whether its prompt is computed, stored as a whole, or shared in part, also of
recurrent and hybrid models, and of layers with windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gguf_types import quantised

from edgespec.engine.settings import EngineSettings
from edgespec.models.embedded import embedded_pair
from edgespec.ports import LanguageModel
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.state.prefix_cache import PrefixCache
from edgespec_runtimes.gguf import kept_texts, runtime
from engine_cases import AskedEngine as Engine
from one_tree import OneTree
from paging_contract import load_either
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import EXPERTS_ONLY, Species

N_NEW = 6
SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0.9, seed=3)]
PROMPT = [(7 * n * n + 3 * n + 1) % 200 + 3 for n in range(150)]
PROMPTS = {
    "warm": PROMPT,
    "longer": [*PROMPT, *PROMPT[:90]],
    "a_few_new_tokens": [*PROMPT[:-5], 9, 9, 9],
    "cut_in_a_batch": [*PROMPT[:101], *PROMPT[50:120]],
    "less_than_a_tile": PROMPT[:40],
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_texts, "MAX_BLOCK_TOKENS", 8)


@pytest.fixture(scope="module")
def k_quants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantised("Q4_K_M", tmp_path_factory.mktemp("Q4_K_M"))


def opened(path: Path, is_paged: bool, n_slots: int, **changes: Any) -> LanguageModel:
    usual = {"ctx_size": 512, "batch_size": 128, "n_slots": n_slots}
    return load_either(runtime.prepare(model_request(path, **usual | changes)), is_paged)


def written(
    target: LanguageModel, folder: Path | None, *prompts: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """The text after each prompt, and the tokens that need not be read for it, in engines whose
    texts are stored in `folder`; greedy and sampled texts take turns."""
    texts, known = [], []
    for n, prompt in enumerate(prompts):
        place = None if folder is None else PrefixCache(folder, 1 << 30, target, None).place
        settings = EngineSettings(remember=False, lookup=True)
        with Engine(target, None, settings, prefixes=place) as engine:
            request = engine.admit(TextRequest(tuple(prompt), SAMPLINGS[n % 2], N_NEW))
            texts.append([event.token for event in engine.ask(request)])
            known.append(request.result().reused_tokens)
        target.truncate(0)
    return texts, known


SLOW = pytest.mark.slow
CASES = [
    ("Q8_0", False, 2),
    ("Q4_K_M", True, 1),
    pytest.param("Q8_0", True, 1, marks=SLOW),
    pytest.param("Q8_0", False, 1, marks=SLOW),
    pytest.param("Q8_0", True, 2, marks=SLOW),
    pytest.param("Q4_K_M", False, 2, marks=SLOW),
    pytest.param("Q4_K_M", True, 2, marks=SLOW),
    pytest.param("Q4_K_M", False, 1, marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "is_paged", "n_slots"), CASES)
def test_stored_prefixes_change_no_text(
    kind: str, is_paged: bool, n_slots: int, tmp_path: Path, k_quants: Path
) -> None:
    path = k_quants if kind == "Q4_K_M" else embedded_pair().target
    with closing(opened(path, is_paged, n_slots)) as target:
        cold, none = written(target, None, *PROMPTS.values())
        written(target, tmp_path, PROMPT)
        stored, known = written(target, tmp_path, *PROMPTS.values())
    assert stored == cold
    reused = dict(zip(PROMPTS, known, strict=True))
    assert reused["warm"] >= len(PROMPT) - 64 - 8
    assert reused["cut_in_a_batch"] >= 101 - 64 - 8
    assert {*none} == {0}


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    with closing(opened(embedded_pair().target, False, 1)) as target:
        yield target


def test_a_block_holds_no_dropped_guesses_and_storing_it_moves_no_later_cell(
    model: LanguageModel,
) -> None:
    """Storing a block after a pass with a wrong guess had stored the guess with it, and freed its
    cell, into which the next token was written: texts differed."""
    tokens = PROMPT[: model.info.block_tokens]
    prefill(model, tokens)
    block = bytes(model.write_block(0, 0))
    tree = OneTree(5, 4)
    wrong = tree.add(0, 7, confidence=0.9)
    right = tree.add(0, 9, confidence=0.1)
    evaluate(model, tree, [0, wrong, right])
    model.commit(tree, [0, right])
    assert bytes(model.write_block(0, 0)) == block
    stored = evaluate(model, OneTree(11, 1), [0]).copy()
    model.truncate(0)
    prefill(model, [*tokens, 5, 9])
    assert np.array_equal(stored, evaluate(model, OneTree(11, 1), [0]))


RECURRENT = [
    pytest.param(name, is_paged, marks=SLOW)
    for name, is_paged in (
        *(("qwen35", False), ("qwen35", True), ("rwkv7", False), ("mamba2", True)),
        *(("granitehybrid", False), ("qwen3next", True), ("falcon-h1", False), ("jamba", True)),
    )
]
"""Architectures, and whether they are paged: what is kept of a text does not depend on it."""
WINDOWED = [
    ("gemma3", 1, False),
    pytest.param("gemma3", 2, False, marks=SLOW),
    pytest.param("gpt-oss", 1, True, marks=SLOW),
    pytest.param("gpt-oss", 2, False, marks=SLOW),
    pytest.param("cohere2", 1, True, marks=SLOW),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


def opened_kind(folder: Path, name: str, is_paged: bool, n_slots: int = 1) -> LanguageModel:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_model(path, Species(name, name in EXPERTS_ONLY), {"context_length": 4096})
    return opened(path, is_paged, n_slots, ctx_size=2048, stores_prefixes=True)


@pytest.mark.parametrize(("name", "is_paged"), RECURRENT)
def test_a_recurrent_text_goes_on_where_an_earlier_prompt_ended(
    name: str, is_paged: bool, folder: Path, tmp_path: Path
) -> None:
    others = ([*PROMPT[:100], n, *PROMPT[:30]] for n in (1, 2))
    prompts = (PROMPT, [*PROMPT, *PROMPT[:50]], PROMPT[:100], *others)
    with closing(opened_kind(folder, name, is_paged)) as target:
        cold, none = written(target, None, *prompts)
        written(target, tmp_path, PROMPT)
        warm, known = written(target, tmp_path, *prompts)
    assert warm == cold
    assert none == [0] * 5
    assert known[0] == known[1] >= len(PROMPT) - 10
    assert known[2] == 0
    assert known[4] >= known[3] >= 64  # it is kept where texts diverge


@pytest.mark.parametrize(("name", "n_slots", "is_paged"), WINDOWED)
def test_a_text_with_windows_goes_on_after_any_block(
    name: str, n_slots: int, is_paged: bool, folder: Path, tmp_path: Path
) -> None:
    long = [*PROMPT, *PROMPT]
    apart = [*long[:100], 5, 6, 7, *long[:30]]
    prompts = (long, [*long[:-20], 9, 9], apart)
    with closing(opened_kind(folder, name, is_paged, n_slots)) as target:
        cold, _ = written(target, None, *prompts)
        written(target, tmp_path, long)
        warm, known = written(target, tmp_path, *prompts)
    assert warm == cold
    assert known[0] > len(long) - 80
    assert known[1] > len(long) - 100
    assert known[2] > 90
