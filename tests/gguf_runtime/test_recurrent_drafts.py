"""Drafts with a recurrent state: whatever grew, was committed and dropped before, a node's logits
are those after its text."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import UsageError
from edgespec.ports import LanguageModel
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.enlarge.gguf.trim import write_trimmed
from edgespec_runtimes.gguf import runtime
from head_cases import LINE
from one_tree import ROOT, OneTree
from paging_contract import load_either
from port_calls import evaluate, prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import EXPERTS_ONLY, Species

ARCHITECTURES = ("qwen35", "qwen35moe", "lfm2", "lfm2moe", "granitehybrid", "nemotron_h_moe")
STATES_ALONE = ("mamba", "rwkv7")
N_CTX = 64
ROUNDING = 0.6
"""Most that rows of a prompt and single ones differ by; another text's logits differ by several."""


def opened(path: Path) -> LanguageModel:
    request = model_request(path, owner="draft", ctx_size=N_CTX, max_nodes=17, max_branches=8)
    return load_either(runtime.prepare(request))


@pytest.fixture(scope="module", params=("qwen35", "lfm2", "granitehybrid", *STATES_ALONE))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture = request.param
    species = Species(architecture, architecture in EXPERTS_ONLY)
    return write_model(tmp_path_factory.mktemp(architecture) / "m.gguf", species)


class TextsAnew:
    """The same model, which reads every text from its beginning."""

    def __init__(self, path: Path) -> None:
        self._model = opened(path)
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def after(self, tokens: tuple[int, ...]) -> np.ndarray:
        if tokens not in self._known:
            self._model.truncate(0)
            prefill(self._model, tokens[:-1])
            self._known[tokens] = evaluate(self._model, OneTree(tokens[-1], 4), [ROOT])[0]
        return self._known[tokens]

    def close(self) -> None:
        self._model.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_node_s_logits_are_those_after_its_text(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with closing(opened(path)) as model, closing(TextsAnew(path)) as reference:
        assert model.info.tree_capable
        text = [draw.randrange(20, 280) for _ in range(5)]
        prefill(model, text)
        key = 0
        for _ in range(8):
            tree, done = OneTree(draw.randrange(20, 280), 64, key), []
            for _ in range(draw.randrange(1, 6)):  # steps of a round
                fresh = [] if done else [ROOT]
                while done and len(fresh) < draw.randrange(1, 3):
                    leaves = set(tree.leaves([*done, *fresh]))
                    parent = draw.choice(done)
                    if parent not in leaves and len(leaves) >= model.info.max_branches:
                        break
                    fresh.append(tree.add(parent, draw.randrange(20, 280), 0.5))
                if not fresh:
                    break
                for node, row in zip(fresh, evaluate(model, tree, fresh), strict=True):
                    its_path = tree.token[tree.path(node)].tolist()
                    expected = reference.after((*text, *its_path))
                    np.testing.assert_allclose(row, expected, rtol=0, atol=ROUNDING)
                done += fresh
            path_down = tree.path(draw.choice(done))
            below = [node for node in tree.subtree(path_down[-1]) if node in done]
            model.commit(tree, path_down, below[1:])
            text += [int(tree.token[node]) for node in path_down]
            assert model.committed_of(0) == len(text)
            key = tree.next_key
            if draw.random() < 0.2:
                model.truncate(len(text))


@pytest.mark.slow
def test_what_is_left_of_the_tree_goes_on_with_its_root(path: Path) -> None:
    with closing(opened(path)) as model, closing(TextsAnew(path)) as reference:
        prefill(model, [30, 31, 32])
        tree = OneTree(33, 16)
        first = tree.add(ROOT, 34, 0.5)
        second = tree.add(first, 35, 0.5)
        evaluate(model, tree, [ROOT, first])
        evaluate(model, tree, [second])
        model.commit(tree, [ROOT], [first, second])
        rest = tree.reroot(first)
        (below,) = (node for node in rest.subtree(ROOT) if rest.depth[node] == 1)
        leaf = rest.add(below, 36, 0.5)
        (row,) = evaluate(model, rest, [leaf])
        np.testing.assert_allclose(row, reference.after((30, 31, 32, 33, 34, 35, 36)), 0, ROUNDING)


@pytest.mark.slow
def test_a_shortened_text_is_read_again_where_its_state_is_lost(path: Path) -> None:
    with closing(opened(path)) as model:
        prefill(model, [30, 31, 32, 33])
        model.truncate(2)
        assert model.committed_of(0) == 0
        with pytest.raises(UsageError):
            model.truncate(3)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_draft_made_from_a_hybrid_guesses_its_text(architecture: str, tmp_path: Path) -> None:
    species = Species(architecture, architecture in EXPERTS_ONLY)
    target = write_model(tmp_path / "target.gguf", species)
    write_trimmed(target, tmp_path / "draft.gguf", range(512))
    texts = []
    for draft in (None, tmp_path / "draft.gguf"):
        settings = LoadSettings(model=target, draft=draft, memory_budget="1GiB", ctx_size=128)
        with session.load(settings, LINE) as running:
            texts.append(running.generate([*range(40, 60)], max_tokens=24))
    assert texts[0].tokens == texts[1].tokens
    assert texts[1].speculation.tokens_per_pass > 1.5
