"""The tokens of a prompt that are read again, and their kernels, follow from the prompt
alone, whatever a session did before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.settings import EngineSettings
from edgespec.ports import PassPart, Progress
from engine_cases import COUNTING, GREEDY, N_VOCAB, counting, finish
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel
from one_tree import OneTree

TILE = 8


class TwoKernels(FakeModel):
    """Long prompts are computed in tiles, which need so many rows; everything else by row."""

    def __init__(self, tile: int = TILE, **options: Any) -> None:
        super().__init__(COUNTING, N_VOCAB, **options)
        self.info = replace(self.info, prompt_tile=tile)
        self.kernels = ""
        """Kinds of the committed tokens: t or r each."""
        self._kind_of_root = "r"

    def _kind(self, n_tokens: int) -> str:
        """The kernels that read the next tokens of a prompt."""
        in_tiles = 0 < self.info.prompt_tile <= len(self.committed) + n_tokens
        assert not in_tiles or n_tokens >= self.info.prompt_tile
        return "t" if in_tiles else "r"

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        kind = self._kind(len(tokens))
        super()._read(tokens, slot, progress)
        self.kernels += len(tokens) * kind

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        [part] = parts
        kind = self._kind(part.n_rows) if part.reads else "r"
        logits = super()._evaluate(parts)
        self.kernels += len(part.reads) * kind
        self._kind_of_root = kind
        return logits

    def commit(
        self, tree: OneTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        super().commit(tree, path, keep, slot)
        self.kernels += len(path) * self._kind_of_root

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        super().truncate(n_tokens, slot)
        self.kernels = self.kernels[: len(self.committed)]


def written(target: TwoKernels, engine: Engine, prompt: Sequence[int]) -> None:
    """Two tokens after a prompt; the target holds the prompt and the first of them."""
    finish(engine.generate(prompt, GREEDY, max_tokens=2))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@pytest.mark.slow
@given(
    texts=st.lists(prompts, min_size=1, max_size=5),
    kind=st.sampled_from([{}, {"gives_first": True}, {"tree_capable": False}]),
    max_nodes=st.sampled_from([1, 4, 64]),
)
def test_kernels_follow_from_the_prompt(
    texts: list[list[int]], kind: dict[str, bool], max_nodes: int
) -> None:
    target = TwoKernels(max_nodes=max_nodes, **kind)
    with Engine(target) as engine:
        for text in texts:
            written(target, engine, text)
            n_read = len(text) - (not target.info.prompts_give_logits)
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


FIRST = [0, 1] * 10
"""A prompt of twenty tokens."""


def gives_first(tile: int = 0, **options: Any) -> TwoKernels:
    """A model whose prompts end in logits."""
    return TwoKernels(tile, gives_first=True, **options)


@pytest.mark.parametrize("tile", [0, TILE], ids=["rows", "tiles"])
@pytest.mark.parametrize("drafted", [False, True])
def test_the_first_token_comes_from_the_pass_over_the_prompts_end(tile: int, drafted: bool) -> None:
    """It took a pass of its own: a paged model read all weights once more for it."""
    target, shares = gives_first(tile), list[float]()
    settings = EngineSettings(step_aside=False)  # no pass is timed
    with Engine(target, counting(n_ctx=256) if drafted else None, settings) as engine:
        events = engine.generate(FIRST, GREEDY, 3, progress=lambda _, share: shares.append(share))
        first = next(events)
        assert target.n_passes == 1
        result = finish(events)
    assert (first.token, first.origin, first.round) == (result.tokens[0], "target", 0)
    assert list(result.tokens) == written_in_two_passes(3)
    assert shares == [0.0, 0.5, 1.0]
    assert result.timings.first_token_s <= result.timings.prompt_s


def test_passes_are_timed_before_the_first_token_is_shown() -> None:
    """They took a fifth of a pair's first text of 64 tokens, which was slower than none by that."""
    target = gives_first()
    with Engine(target, counting(n_ctx=256), EngineSettings(lookup=False)) as engine:
        events = engine.generate(FIRST, GREEDY, 3)
        next(events)
        n_timed = target.n_passes - 1
        result = finish(events)
    assert n_timed >= 1
    assert target.n_passes == 1 + n_timed + result.speculation.rounds
    assert result.timings.first_token_s <= result.timings.prompt_s


def written_in_two_passes(n_tokens: int) -> list[int]:
    with Engine(TwoKernels(tile=0)) as engine:
        return list(finish(engine.generate(FIRST, GREEDY, n_tokens)).tokens)


@pytest.mark.parametrize("tile", [0, TILE], ids=["rows", "tiles"])
def test_the_same_prompt_again_takes_one_pass(tile: int) -> None:
    target = gives_first(tile)
    with Engine(target) as engine:
        expected = finish(engine.generate(FIRST, GREEDY, 4)).tokens
        before = target.n_passes
        again = engine.generate(FIRST, GREEDY, 4)
        assert next(again).token == expected[0]
        assert target.n_passes == before + 1
        assert finish(again).tokens == expected
        assert target.kernels[: len(FIRST)] == len(FIRST) * ("t" if tile else "r")


def test_a_prompt_that_was_cancelled_is_read_again_in_one_pass() -> None:
    target = gives_first()
    with Engine(target) as engine:
        events = engine.generate(FIRST, GREEDY, 3)
        target.hook = lambda model: events.cancel()
        assert finish(events).finish_reason == "cancelled"
        assert not engine.committed
        target.hook = None
        assert list(finish(engine.generate(FIRST, GREEDY, 3)).tokens) == written_in_two_passes(3)
    assert target.n_passes == 3


def test_what_was_generated_is_read_again_in_tiles() -> None:
    target = TwoKernels()
    with Engine(target) as engine:
        written(target, engine, [1] * (2 * TILE + 1))
        answered = list(engine.committed)
        before = len(target.prefilled)
        written(target, engine, [*answered, 1])
    assert target.prefilled[before:] == [TILE]
