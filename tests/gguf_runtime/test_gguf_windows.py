"""Layers with sliding windows keep what a text may still see; the text is that of whole caches."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.ports import PassPart
from edgespec.rules.sampling import SamplingParams
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.context import cache_memory, windows
from edgespec_runtimes.gguf.context.contexts import window_shape
from edgespec_runtimes.gguf.context.windows import WindowShape
from edgespec_runtimes.gguf.model import GgufModel
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from one_tree import OneTree
from paging_contract import load_either, one_by_one
from port_calls import prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import EXPERTS_ONLY, Species

pytestmark = pytest.mark.skipif(
    not windows.is_supported(), reason="memory is given back on Linux only"
)

N_CTX = 4096
SPECIES = ["gemma3", "gemma2", "gemma3n", "gpt-oss", "cohere2"]
WARM = SamplingParams(temperature=0.9, seed=3)
Open = Callable[..., GgufModel]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


def written(folder: Path, name: str, cousin: bool = False) -> Path:
    path = folder / f"{name}{'-cousin' * cousin}.gguf"
    if not path.exists():
        changes = {"context_length": 5 * N_CTX}
        write_model(path, Species(name, name in EXPERTS_ONLY), changes, cousin=cousin)
    return path


@pytest.fixture
def open_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    opened: list[GgufModel] = []

    def open_it(
        name: str = "gemma3", whole: bool = False, paged: bool = False, **settings: Any
    ) -> GgufModel:
        path = written(folder, name, cousin=settings.get("owner") == "draft")
        given = {"ctx_size": N_CTX, "max_branches": 9, "batch_size": 128} | settings
        request = model_request(path, **given)
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(windows, "is_supported", lambda: False)
            prepared = runtime.prepare(request)
            model = load_either(prepared, paged)
        assert (model._windows is None) == whole
        opened.append(model)
        return model

    yield open_it
    for model in opened:
        model.close()


def text_of(n_tokens: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(1, 250, n_tokens)]


def resident_bytes(model: GgufModel) -> int:
    """Bytes of the layers with windows that are in memory."""
    found = 0
    for begin, size in model._windows._buffers.values():
        first, last = cache_memory.whole_pages(begin, begin + size)
        flags = (ctypes.c_uint8 * ((last - first) // mmap.PAGESIZE))()
        answer = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), flags
        )
        assert answer == 0
        found += sum(flag & 1 for flag in flags) * mmap.PAGESIZE
    return found


def planned_bytes(model: GgufModel) -> int:
    """Bytes that the plan has for them."""
    shape, cells = window_shape(model._model.n_window, model._shape), model._windows
    total = sum(size for _, size in cells._buffers.values())
    n_layers = len(cells.tensors) // 2
    return shape.planned_bytes(len(cells.held), n_layers, total)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIES)
def test_logits_are_those_of_the_whole_cache(name: str, open_model: Open) -> None:
    tokens = text_of(1300)  # the last 200 are more than a window and its slack
    seen = []
    for whole in (False, True):
        model = open_model(name, whole)
        prefill(model, tokens[:1100])
        seen.append(one_by_one(model, tokens[1100:]))
        if not whole:
            assert resident_bytes(model) < planned_bytes(model)
    assert np.array_equal(*seen)


def ask(engine: Engine, prompt: Sequence[int], n_tokens: int = 80) -> list[int]:
    return list(finish(engine.generate(prompt, WARM, n_tokens)).tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafted", "paged"), [("alone", True), ("lookups", False), ("draft", False), ("draft", True)]
)
def test_texts_are_those_of_the_whole_cache(drafted: str, paged: bool, open_model: Open) -> None:
    """Prompts and answers of many windows; guesses in trees, by a draft with windows of its own."""
    prompt = text_of(500)[:50] * 12
    texts = []
    for whole in (False, True):
        target = open_model(whole=whole, paged=paged)
        draft = open_model(whole=whole, owner="draft") if drafted == "draft" and not whole else None
        settings = EngineSettings(step_aside=False, lookup=drafted != "alone")
        with Engine(target, draft, settings) as engine:
            texts.append(ask(engine, prompt, 150))
            if not whole:
                assert resident_bytes(target) < planned_bytes(target)
    assert texts[0] == texts[1]


class Twins:
    """A model that gives back and one with whole caches, which do the same and see the same."""

    def __init__(
        self, open_model: Open, n_slots: int = 1, n_nodes: int = 9, **settings: Any
    ) -> None:
        settings |= {"max_nodes": max(n_nodes, settings.get("max_nodes", 0))}
        self.lean = open_model(n_slots=n_slots, **settings)
        self.whole = open_model(whole=True, n_slots=n_slots, **settings)
        self.texts: list[list[int]] = [[] for _ in range(n_slots)]
        self._rng, self._n_nodes = np.random.default_rng(1), n_nodes // n_slots

    def token(self) -> int:
        return int(self._rng.integers(1, 250))

    def prefill(self, n_tokens: int, text: int = 0) -> None:
        tokens = [self.token() for _ in range(n_tokens)]
        for model in (self.lean, self.whole):
            prefill(model, tokens, slot=text)
        self.texts[text] += tokens
        self.check_memory()

    def round(self, *texts: int) -> None:
        """Verify a random tree of each text in one pass, and commit a random path of each."""
        trees = {text: self._tree() for text in texts}
        parts = [PassPart(text, tree, range(len(tree))) for text, tree in trees.items()]
        seen = [model.evaluate(parts) for model in (self.lean, self.whole)]
        assert all(np.array_equal(*logits) for logits in zip(*seen, strict=True))
        for text, tree in trees.items():
            path = tree.path(int(self._rng.integers(0, len(tree))))
            for model in (self.lean, self.whole):
                model.commit(tree, path, slot=text)
            self.texts[text] += [int(tree.token[node]) for node in path]
        self.check_memory()

    def go_back(self, n_tokens: int, text: int = 0) -> int:
        """Shorten a text, and read again what the lean model forgot. Returns its tokens."""
        for model in (self.lean, self.whole):
            model.truncate(n_tokens, slot=text)
        n_read = n_tokens - self.lean.committed_of(text)
        prefill(self.lean, self.texts[text][n_tokens - n_read : n_tokens], slot=text)
        del self.texts[text][n_tokens:]
        self.check_memory()
        return n_read

    def check_memory(self) -> None:
        assert resident_bytes(self.lean) <= planned_bytes(self.lean)

    def _tree(self) -> OneTree:
        tree = OneTree(self.token())
        tokens = self._rng.permutation(250)
        while len(tree) < self._n_nodes:
            parent = int(self._rng.integers(max(0, len(tree) - 3), len(tree)))
            tree.add(parent, int(tokens[len(tree)]), 0.5)
        return tree


@pytest.mark.slow
def test_trees_see_what_they_see_in_the_whole_cache(open_model: Open) -> None:
    """Enough are dropped meanwhile that cells are put in order several times."""
    twins = Twins(open_model, name="gemma3")
    twins.prefill(700)
    for _ in range(250):
        twins.round(0)
    assert twins.lean._texts.n_moved > 0
    assert not twins.lean._windows.held[100:500].any()


@pytest.mark.slow
def test_several_texts_see_what_they_see_in_whole_caches(open_model: Open) -> None:
    twins = Twins(open_model, n_slots=3, ctx_size=2048, max_nodes=12)
    for text in range(3):
        twins.prefill(300 + 200 * text, text)
    for n in range(36):
        twins.round(*([0, 1, 2], [0, 2], [1])[n % 3])
    twins.go_back(400, 1)
    for _ in range(8):
        twins.round(0, 1, 2)


def test_a_shared_beginning_is_read_again_if_it_was_given_back(open_model: Open) -> None:
    twins = Twins(open_model, n_slots=2, ctx_size=2048, max_nodes=8)
    twins.prefill(300)
    for n_tokens, is_held in ((290, True), (100, False)):
        for model in (twins.lean, twins.whole):
            model.share(0, 1, n_tokens)
        n_shared = twins.lean.committed_of(1)
        assert n_shared == (n_tokens if is_held else 0)
        twins.texts[1] = twins.texts[0][:n_tokens]
        prefill(twins.lean, twins.texts[1][n_shared:], slot=1)
        for _ in range(3):
            twins.round(0, 1)


def test_a_prompt_that_is_read_in_parts_has_one_end(open_model: Open) -> None:
    twins = Twins(open_model, n_slots=2, ctx_size=2048, max_nodes=8)
    for _ in range(3):
        twins.prefill(60)
    assert set(twins.lean._texts.all[0].ends) == {180}


@pytest.mark.slow
def test_a_turn_goes_back_to_where_a_prompt_ended(open_model: Open) -> None:
    twins = Twins(open_model)
    twins.prefill(900)
    for _ in range(150):
        twins.round(0)
    n_all = len(twins.texts[0])
    assert twins.go_back(n_all - 100) == 0
    twins.round(0)
    assert twins.go_back(850) == 0
    twins.round(0)
    for _ in range(150):
        twins.round(0)
    n_tokens = 900 + (len(twins.texts[0]) - 900) // 2
    assert twins.go_back(n_tokens) == n_tokens - 850
    twins.round(0)


@pytest.mark.slow
@pytest.mark.parametrize("drafted", [False, True])
def test_turns_are_those_of_a_new_session(drafted: bool, open_model: Open) -> None:
    """Answers cut short, prompts that leave out what was said, a question after a common start."""
    target = open_model()
    draft = open_model(owner="draft", max_nodes=9) if drafted else None
    start = text_of(400, seed=5)
    with Engine(target, draft, EngineSettings(step_aside=False)) as engine:
        first = ask(engine, [*start, *text_of(200)])
        prompts = [
            [*start, *text_of(200), *first[:70], *text_of(30, seed=6)],
            [*start, *text_of(300, seed=7)],
            [*start, *text_of(200), *text_of(20, seed=8)],
            start[:250],
        ]
        answers = [ask(engine, prompt, 60) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        with Engine(open_model(whole=True), None, EngineSettings()) as engine:
            assert ask(engine, prompt, 60) == answer


def test_a_window_as_long_as_the_context_gives_nothing_back() -> None:
    assert WindowShape(4096, 8192, 1, 300, 512).n_seen > 8192
