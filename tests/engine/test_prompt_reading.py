"""The tokens of a prompt that are read again, and their kernels, follow from the prompt
alone, whatever a session did before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.engine import Engine
from edgespec.engine.planning.credit import Credit
from edgespec.engine.prompt import _portions
from edgespec.engine.settings import EngineSettings
from edgespec.ports import Progress
from edgespec.tree import TokenTree
from engine_cases import COUNTING, GREEDY, N_VOCAB, counting, finish
from fake_model import FakeModel

TILE = 8


class TwoKernels(FakeModel):
    """Long prompts are computed in tiles, which need so many rows; everything else by row."""

    def __init__(self, tile: int = TILE, tree_capable: bool = True, max_nodes: int = 64) -> None:
        super().__init__(COUNTING, N_VOCAB, tree_capable=tree_capable, max_nodes=max_nodes)
        self.info = replace(self.info, prompt_tile=tile)
        self.kernels = ""
        """Kinds of the committed tokens: t or r each."""

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        in_tiles = 0 < self.info.prompt_tile <= len(self.committed) + len(tokens)
        assert not in_tiles or len(tokens) >= self.info.prompt_tile
        super()._read(tokens, slot, progress)
        self.kernels += len(tokens) * ("t" if in_tiles else "r")

    def commit(
        self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        super().commit(tree, path, keep, slot)
        self.kernels += len(path) * "r"

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        super().truncate(n_tokens, slot)
        self.kernels = self.kernels[: len(self.committed)]


def written(target: TwoKernels, engine: Engine, prompt: Sequence[int]) -> None:
    """Two tokens after a prompt; the target holds the prompt and the first of them."""
    finish(engine.generate(prompt, GREEDY, max_tokens=2))


@given(n_tokens=st.integers(1, 200), n_batch=st.integers(TILE, 40))
def test_no_portion_of_a_prompt_is_smaller_than_a_tile(n_tokens: int, n_batch: int) -> None:
    """Other texts are written between the portions."""
    target = TwoKernels()
    target.info = replace(target.info, prompt_batch=n_batch)
    slot: Any = SimpleNamespace(target=target)
    ends = _portions(slot, [0] * n_tokens)
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(sizes) == n_tokens
    assert min(sizes) >= min(n_tokens, TILE)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@pytest.mark.slow
@given(
    texts=st.lists(prompts, min_size=1, max_size=5),
    tree_capable=st.booleans(),
    max_nodes=st.sampled_from([1, 4, 64]),
)
def test_kernels_follow_from_the_prompt(
    texts: list[list[int]], tree_capable: bool, max_nodes: int
) -> None:
    target = TwoKernels(tree_capable=tree_capable, max_nodes=max_nodes)
    with Engine(target) as engine:
        for text in texts:
            written(target, engine, text)
            n_read = len(text) - 1
            kernel = "t" if n_read >= TILE else "r"
            assert target.kernels[:n_read] == n_read * kernel
            assert set(target.kernels[n_read:]) == {"r"}


@pytest.mark.slow
@given(texts=st.lists(prompts, min_size=2, max_size=2))
def test_where_all_tokens_round_alike_nothing_is_read_twice(texts: list[list[int]]) -> None:
    target = TwoKernels(tile=0)
    first, more = texts
    with Engine(target) as engine:
        written(target, engine, first)
        held = list(engine.committed)
        before = len(target.prefilled), sum(target.evaluations)
        written(target, engine, [*held, *more])
    n_new = sum(target.prefilled[before[0] :]) + sum(target.evaluations) - before[1]
    assert n_new == len(more) + 1


@pytest.mark.parametrize("max_nodes", [17, 97])
def test_a_rest_of_any_length_that_fits_a_pass_is_read_in_one(max_nodes: int) -> None:
    target = TwoKernels(tile=0, max_nodes=max_nodes)
    with Engine(target) as engine:
        written(target, engine, [1, 2, 3])
        before = len(target.evaluations)
        written(target, engine, [*engine.committed, *([1] * max_nodes)])
    assert target.evaluations[before] == max_nodes


def test_what_was_generated_is_read_again_in_tiles() -> None:
    target = TwoKernels()
    with Engine(target) as engine:
        written(target, engine, [1] * (2 * TILE + 1))
        answered = list(engine.committed)
        before = len(target.prefilled)
        written(target, engine, [*answered, 1])
    assert target.prefilled[before:] == [TILE]


@pytest.mark.parametrize("n_kept", [8, 2])
def test_tokens_that_the_draft_has_not_read_are_those_after_the_last_it_holds(
    n_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds without guesses left the draft behind by three tokens of the text before."""
    seen: list[int] = []
    begin_text = Credit.begin_text

    def recorded(self: Credit, n_unread: int, *others: Any, **named: Any) -> None:
        seen.append(n_unread)
        begin_text(self, n_unread, *others, **named)

    first = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    draft = counting(n_ctx=256)
    with Engine(counting(n_ctx=256), draft, EngineSettings(step_aside=False)) as engine:
        finish(engine.generate(first, GREEDY, 1))
        draft.truncate(len(engine.committed) - 3)
        n_drafted = min(n_kept, len(engine.committed) - 3)
        monkeypatch.setattr(Credit, "begin_text", recorded)
        second = [*first[:n_kept], *[0] * 100]
        finish(engine.generate(second, GREEDY, 1))
    assert seen == [len(second) - 1 - n_drafted]
