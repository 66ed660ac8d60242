"""Trees of targets whose state cannot drop tokens: each branch is a line with its own state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec.rules.sampling import SamplingParams
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context_choice import MAX_LINE, MAX_LINES
from engine_cases import generate
from fake_model import FakeModel, blend, fixed_text, random_language
from one_tree import OneTree
from paging_contract import load_either, one_by_one
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import EXPERTS_ONLY, Species

PROMPT = [(7 * n) % 200 for n in range(20)]
MAX_NODES = 1 + MAX_LINE * MAX_LINES
N_CTX = 256
WARM = SamplingParams(temperature=0.9, seed=3)
ROLLED_BACK = ["qwen35", "nemotron_h"]
COPIED = ["granitehybrid", "qwen3next", "mamba2", "jamba", "rwkv7"]
"""Architectures whose state can only be copied."""


FEW = ("qwen35", "granitehybrid", "rwkv7")
"""Architectures of the fast tests: rolled back, mixed layers, and no attention at all."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in FEW else pytest.mark.slow)
        for name in ROLLED_BACK + COPIED
    ],
)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    species = Species(request.param, request.param in EXPERTS_ONLY)
    return write_model(tmp_path_factory.mktemp("lines") / "m.gguf", species)


def request_for(path: Path, max_nodes: int = MAX_NODES) -> ModelRequest:
    return model_request(path, ctx_size=N_CTX, max_nodes=max_nodes, max_branches=32, batch_size=64)


@pytest.fixture(params=["resident", "paged"])
def target(request: pytest.FixtureRequest, hybrid: Path) -> Iterator[LanguageModel]:
    prepared = runtime.prepare(request_for(hybrid))
    with closing(load_either(prepared, request.param == "paged")) as model:
        yield model


def random_tree(random: np.random.Generator, key: int) -> OneTree:
    """Up to MAX_LINES branches of up to MAX_LINE guesses."""
    tree, n_leaves, n_nodes = OneTree(int(random.integers(200)), 64, key), 1, random.integers(15)
    while len(tree) <= n_nodes:
        parent, token = int(random.integers(len(tree))), int(random.integers(200))
        opens = bool(tree.children(parent))
        fits = tree.depth[parent] < MAX_LINE and n_leaves + opens <= MAX_LINES
        if fits and tree.child(parent, token) is None:
            tree.add(parent, token, float(random.uniform(0.2, 0.9)))
            n_leaves += opens
    return tree


@pytest.mark.slow
def test_rounds_of_trees_give_the_logits_of_single_tokens(
    target: LanguageModel, hybrid: Path
) -> None:
    """Also after a path that the first line does not hold, which the next pass takes in."""
    random, key = np.random.default_rng(3), 0
    prefill(target, PROMPT)
    tokens: list[int] = []
    seen: list[np.ndarray] = []
    for _ in range(12):
        tree = random_tree(random, key)
        logits = evaluate(target, tree, range(len(tree)))
        path = tree.path(int(random.integers(len(tree))))
        target.commit(tree, path)
        tokens += tree.token[path].tolist()
        seen += [logits[node].copy() for node in path]
        key = tree.next_key
        assert target.committed_of(0) == len(PROMPT) + len(tokens)
    alone = runtime.prepare(request_for(hybrid, max_nodes=1)).load(None)
    prefill(alone, PROMPT)
    assert np.array_equal(np.stack(seen), one_by_one(alone, tokens))
    alone.close()


@pytest.mark.costly
def test_a_tree_is_one_pass(target: LanguageModel) -> None:
    tree = OneTree(5, 64)
    for n in range(3):
        tree.add(tree.add(0, 10 + n, 0.3), 20 + n, 0.5)
    prefill(target, PROMPT)
    evaluate(target, tree, range(len(tree)))
    assert (target.last_report.passes, target.last_report.n_tokens) == (1, 3 * 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "sampling", "room"),
    [
        pytest.param("resident", SamplingParams(), 40, id="resident, greedy"),
        pytest.param("paged", WARM, 80, id="paged, sampled"),
        pytest.param("resident", WARM, 80, id="resident, sampled", marks=pytest.mark.slow),
        pytest.param("paged", SamplingParams(), 40, id="paged, greedy", marks=pytest.mark.slow),
    ],
    indirect=["target"],
)
def test_a_text_that_trees_guessed_is_the_one_without_a_draft(
    target: LanguageModel, sampling: SamplingParams, room: int
) -> None:
    """The context ends where the text does: near its end trees become lines."""
    prompt = [(7 * n) % 200 for n in range(N_CTX - room)]
    n_tokens, n_vocab = room + 1, target.info.n_vocab
    alone = generate(target, prompt=prompt, sampling=sampling, max_tokens=n_tokens)
    knows = fixed_text(alone.tokens, n_vocab, len(prompt))
    draft = FakeModel(blend(knows, random_language(1, n_vocab, 3.0), 0.5), n_vocab)
    drafted = generate(
        target, draft, prompt=prompt, sampling=sampling, max_tokens=n_tokens, fallback="full"
    )
    assert drafted.tokens == alone.tokens
    assert drafted.speculation.tokens_per_pass > 1.5


def test_the_plan_may_choose_a_line_whose_states_take_less(hybrid: Path) -> None:
    with closing(runtime.prepare(replace(request_for(hybrid), fewer_nodes=(9,)))) as prepared:
        assert (prepared.info.max_nodes, prepared.info.max_branches) == (MAX_NODES, MAX_LINES)
        tree, line = prepared.needs().batches
    assert (tree.max_nodes, line.max_nodes) == (MAX_NODES, 1 + MAX_LINE)
    states = [row.nbytes for row in tree.rows if "lines" in row.what]
    assert sum(states) > 0
    assert not [row for row in line.rows if "lines" in row.what]
