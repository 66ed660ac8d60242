"""A text is the same whether its prompt is computed, stored as a whole, or shared in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

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
from paging_contract import load_paged
from port_calls import evaluate, prefill
from port_models import model_request

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


def opened(path: Path, is_paged: bool, n_slots: int) -> LanguageModel:
    prepared = runtime.prepare(model_request(path, ctx_size=512, batch_size=128, n_slots=n_slots))
    return load_paged(prepared) if is_paged else prepared.load(None)


def written(
    target: LanguageModel, folder: Path | None, prompts: Sequence[Sequence[int]]
) -> list[tuple[list[int], int]]:
    """The text after each prompt, and the tokens that need not be read for it, in engines whose
    texts are stored in `folder`; greedy and sampled texts take turns."""
    found = []
    for n, prompt in enumerate(prompts):
        place = None if folder is None else PrefixCache(folder, 1 << 30, target, None).place
        settings = EngineSettings(remember=False, lookup=True)
        with Engine(target, None, settings, prefixes=place) as engine:
            request = engine.admit(TextRequest(tuple(prompt), SAMPLINGS[n % 2], N_NEW))
            text = [event.token for event in engine.ask(request)]
            found.append((text, request.result().reused_tokens))
        target.truncate(0)
    return found


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
        cold = written(target, None, [*PROMPTS.values()])
        written(target, tmp_path, [PROMPT])
        stored = written(target, tmp_path, [*PROMPTS.values()])
    assert [text for text, _ in stored] == [text for text, _ in cold]
    reused = dict(zip(PROMPTS, [n for _, n in stored], strict=True))
    assert reused["warm"] >= len(PROMPT) - 64 - 8
    assert reused["cut_in_a_batch"] >= 101 - 64 - 8
    assert {n for _, n in cold} == {0}


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
