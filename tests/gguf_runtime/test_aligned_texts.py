"""Several texts whose prompts are read in tiles: each tile of a text is a tile of cells, so that a
prompt has the logits that it has alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_branches import Harness
from test_gguf_types import quantised
from test_one_text import SMOLLM2

from edgespec.ports import LanguageModel, PassPart
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from gguf_files import tiny_llama
from one_tree import ROOT, OneTree
from paging_contract import load_either, one_by_one
from port_calls import prefill
from port_models import model_request
from zoo_files import write_model
from zoo_species import Species

TILE = 4
N_CTX = 24
"""Tokens of a text, and of its guesses."""


def tiles_of(harness: Harness, text: int) -> list[int]:
    """The tiles of cells that hold a text, one for each of its own tiles."""
    cells = harness.texts.all[text].cells
    assert all(cell % TILE == position % TILE for position, cell in enumerate(cells))
    tiles = [{cell // TILE for cell in cells[n : n + TILE]} for n in range(0, len(cells), TILE)]
    assert all(len(tile) == 1 for tile in tiles)
    return [tile.pop() for tile in tiles]


def several(prefix: int = 0, n_slots: int = 2, n_cells: int = 1 << 20) -> Harness:
    return Harness(4, prefix, n_slots, n_cells, TILE)


def test_a_full_cache_holds_all_texts_and_a_tile_for_each() -> None:
    """Texts that were read in turns take more filled cells than the cache has."""
    harness = several(n_slots=3, n_cells=3 * (20 + TILE))
    for _ in range(4):
        for text in (0, 1, 2):
            harness.read(text, 5, in_tiles=True)
            harness.check()
            tiles_of(harness, text)
    assert [len(prefix) for prefix in harness.prefixes] == [20, 20, 20]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_texts_stay_aligned_whatever_the_others_do(data: st.DataObject) -> None:
    """Prompts in tiles and by row, guesses, cuts and shared beginnings in a cache that is full."""
    n_slots = data.draw(st.integers(2, 3))
    harness = several(n_slots=n_slots, n_cells=n_slots * (N_CTX + TILE))
    key = 0
    for _ in range(data.draw(st.integers(1, 14))):
        text = data.draw(st.integers(0, n_slots - 1))
        prefix = harness.prefixes[text]
        match data.draw(st.sampled_from(["tiles", "tiles", "rows", "guess", "cut", "share"])):
            case "tiles" | "rows" as kind if len(prefix) < N_CTX - 1:
                harness.truncate(text, len(prefix))
                n_tokens = data.draw(st.integers(1, N_CTX - 1 - len(prefix)))
                harness.read(text, n_tokens, kind == "tiles")
                if kind == "tiles":
                    tiles_of(harness, text)
            case "guess" if len(prefix) < N_CTX - 3:
                harness.truncate(text, len(prefix))
                key += 10
                tree = OneTree(0, 4, first_key=key)
                wrong = tree.add(ROOT, 1, 0.5)
                right = tree.add(ROOT, 2, 0.5)
                harness.evaluate_together([(text, tree, [ROOT, wrong, right])])
                harness.commit(tree, [ROOT, right], [], text)
            case "cut":
                harness.truncate(text, data.draw(st.integers(0, len(prefix))))
            case "share":
                other = (text + 1) % n_slots
                n_shared = data.draw(st.integers(0, len(prefix)))
                harness.truncate(other, 0)
                harness.texts.share(text, other, n_shared)
                harness.prefixes[other] = prefix[:n_shared]
        harness.check()


def request_of(path: Path, n_slots: int) -> ModelRequest:
    return model_request(path, ctx_size=512, max_nodes=8, batch_size=128, n_slots=n_slots)


def opened(path: Path, n_slots: int, is_paged: bool = False) -> LanguageModel:
    return load_either(runtime.prepare(request_of(path, n_slots)), is_paged)


class Conversations:
    """Texts of one model, and the same texts alone in another one."""

    def __init__(self, alone: LanguageModel, beside: LanguageModel) -> None:
        self.alone, self.beside = alone, beside
        self.prompts: list[list[int]] = [[] for _ in range(beside.info.n_slots)]
        self.answers: list[list[int]] = [[] for _ in self.prompts]
        self._random = random.Random(3)
        self._key = 0

    def draw(self, n_tokens: int) -> list[int]:
        return [self._random.randrange(20, self.alone.info.n_vocab) for _ in range(n_tokens)]

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        prefill(self.beside, tokens, slot=slot)
        self.prompts[slot] += tokens

    def guess(self, slot: int) -> None:
        """Write a token beside two wrong guesses; its logits are those of the text alone."""
        token, *wrong = self.draw(3)
        tree = OneTree(token, 3, first_key=self._key)
        self._key += 3
        nodes = [ROOT, *(tree.add(ROOT, guess, 0.3) for guess in dict.fromkeys(wrong))]
        [rows] = self.beside.evaluate([PassPart(slot, tree, nodes)])
        row = rows[0].copy()
        self.beside.commit(tree, [ROOT], slot=slot)
        self.answers[slot].append(token)
        self.alone.truncate(0)
        prefill(self.alone, self.prompts[slot])
        assert np.array_equal(row, one_by_one(self.alone, self.answers[slot])[-1])

    def truncate(self, slot: int, n_tokens: int) -> None:
        self.beside.truncate(n_tokens, slot=slot)
        del self.prompts[slot][n_tokens:]
        self.answers[slot].clear()

    def share(self, source: int, target: int, n_tokens: int) -> None:
        self.truncate(target, 0)
        self.beside.share(source, target, n_tokens)
        self.prompts[target] = self.prompts[source][:n_tokens]


@pytest.fixture(
    scope="module",
    params=["Q4_K_M", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Q2_K", "Q8_0", "real"))],
)
def conversations(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversations]:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "real":
        if not SMOLLM2.exists():
            pytest.skip("SmolLM2 is not in the cache: edgespec models pull smollm2")
        path = quantised("Q4_K_M", folder, SMOLLM2)
    else:
        path = quantised(request.param, folder)
    with closing(opened(path, 1)) as alone, closing(opened(path, 3, is_paged=True)) as beside:
        assert alone.info.prompt_tile == beside.info.prompt_tile
        yield Conversations(alone, beside)


@pytest.mark.slow
def test_a_prompt_has_the_logits_that_it_has_alone(conversations: Conversations) -> None:
    """Beside shorter and longer texts, after a finished one, in portions, behind a shared
    beginning, and in a next turn."""
    texts = conversations
    texts.read(0, texts.draw(70))
    texts.read(1, texts.draw(101))
    texts.guess(1)
    texts.truncate(0, 0)
    texts.read(0, texts.draw(5))
    texts.read(2, texts.draw(130))
    for slot in (0, 1, 2):
        texts.guess(slot)
    texts.truncate(1, 90)
    texts.read(1, texts.draw(80))
    texts.guess(1)
    texts.truncate(0, 0)
    texts.read(0, texts.draw(77))
    texts.guess(2)
    texts.truncate(0, 77)
    texts.read(0, texts.draw(66))
    texts.guess(0)
    texts.share(1, 2, 100)
    texts.read(2, texts.draw(64))
    for slot in (2, 1, 0):
        texts.guess(slot)


def alters_prompts(path: Path) -> bool:
    """True if `-np auto` stays at one text."""
    with closing(runtime.prepare(replace(request_of(path, 1), ctx_size=0))) as prepared:
        return prepared.needs().texts_alter_prompts


def test_auto_may_give_several_places_to_k_quants(tmp_path: Path) -> None:
    sizes = {"embedding": 256, "head_size": 64, "ffn": 512, "n_vocab": 304}
    assert not alters_prompts(tiny_llama(kind="Q4_K", **sizes).write(tmp_path / "m.gguf"))


@pytest.mark.slow
def test_windows_of_attention_leave_prompts_of_several_texts_to_rows(tmp_path: Path) -> None:
    """llama.cpp could write over cells outside the windows while cells are moved."""
    changes = {"context_length": 2048}
    source = write_model(tmp_path / "gemma3.gguf", Species("gemma3"), changes)
    path = quantised("Q4_K_M", tmp_path, source)
    assert alters_prompts(path)
    with closing(opened(path, 2)) as model:
        assert model.info.prompt_tile == 0
