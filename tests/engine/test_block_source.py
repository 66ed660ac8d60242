"""Heads that guess blocks: one pass a round gives the guesses of all depths, the tree takes the
most probable paths, and the text is the target's own whatever they guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from source_cases import ask, text_of

from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.head_source import BlockSource
from edgespec.pool import line
from edgespec.ports import PassPart
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from fake_model import FakeModel, blend, fake_features, random_language
from one_tree import ROOT, OneTree
from port_calls import prefill

N_VOCAB = 40
TARGET = random_language(0, N_VOCAB, order=3)
DRAFT = blend(TARGET, random_language(1, N_VOCAB), 0.2)
PROMPT = [5, 9, 2, 30, 11, 7]
EVERY_ROUND = EngineSettings(lookup=False, fallback="full", draft_max=12, step_aside=False)


class FakeBlockHead(FakeModel):
    """A draft that guesses its own greedy text, and asserts that it knows the features of what it
    has read, and that they are its text's."""

    def __init__(self, **settings: object) -> None:
        super().__init__(DRAFT, N_VOCAB, **settings)  # type: ignore[arg-type]
        self.info = replace(self.info, feature_layers=(0, 0, 0), feature_values=2, block_guesses=5)
        self.known: list[np.ndarray] = []
        self.roots: list[tuple[int, int]] = []
        """Lengths of texts and roots of its passes."""

    def take_features(self, position: int, rows: np.ndarray) -> None:
        assert rows.shape[1:] == (3, 2), "three layers of two values"
        if position <= len(self.known):
            self.known[position:] = [row[0].copy() for row in rows]

    def drop_features(self, n_tokens: int) -> None:
        del self.known[n_tokens:]

    def lacks_features(self, n_tokens: int) -> bool:
        return n_tokens > len(self.known)

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        [(_, tree, nodes, *_)] = parts
        self._begin()
        try:
            self._run_hook()
        finally:
            self._is_running = False
        for n, known in enumerate(self.known[: len(self.committed)]):
            assert np.array_equal(known, fake_features(self.committed[: n + 1]))
        assert len(self.committed) <= len(self.known)
        text, rows = [*self.committed, int(tree.token[ROOT])], []
        for _ in range(self.info.block_guesses):
            rows.append(DRAFT(tuple(text)))
            text.append(int(rows[-1].argmax()))
        root = len(self.committed), text[len(self.committed)]
        if self.roots[-1:] != [root]:
            self.roots.append(root)
            self.evaluations.append(len(nodes))
        return [np.stack(rows)[tree.depth[list(nodes)]]]

    def commit(
        self, tree: OneTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        prefill(self, tree.token[list(path)].tolist())


def run(
    draft: FakeModel | None, temperature: float = 0.0, settings: EngineSettings = EVERY_ROUND
) -> GenerationResult:
    sampling = SamplingParams(temperature=temperature, seed=4)
    with Engine(FakeModel(TARGET, N_VOCAB), draft, settings) as engine:
        return finish(engine.generate(PROMPT, sampling, 60))


def feed(head: FakeBlockHead, text: Sequence[int]) -> None:
    """Give the head the features of a text."""
    rows = np.stack([np.stack([fake_features(text[: n + 1])] * 3) for n in range(len(text))])
    head.take_features(0, rows)


def fed() -> tuple[FakeBlockHead, BlockSource, Any]:
    """A head that has read the prompt, its source, and the prompt's text with the root 8."""
    head = FakeBlockHead()
    feed(head, PROMPT)
    source, text = BlockSource(head, 4, N_VOCAB, frozenset({3})), text_of(PROMPT, 8)
    source.read(text)
    return head, source, text


@pytest.mark.costly
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("step_aside", [False, True])
def test_the_text_is_the_target_s_own(temperature: float, lookup: bool, step_aside: bool) -> None:
    settings = EngineSettings(lookup=lookup, step_aside=step_aside)
    with_head = run(FakeBlockHead(), temperature, settings=settings)
    alone = run(None, temperature)
    assert with_head.tokens == alone.tokens


def test_a_round_takes_one_pass_of_the_head() -> None:
    head = FakeBlockHead()
    result = run(head)
    assert result.speculation.accepted > 20
    assert len(head.roots) <= result.speculation.rounds


def test_all_nodes_of_a_depth_have_the_same_guesses() -> None:
    """A path is as probable as the product of the guesses at its depths (DDTree)."""
    head, source, text = fed()
    pool = line(0, [8, 4])
    other = pool.add(0, 9, 0.5)
    ask(source, pool, [0], text)
    first, below, beside = ask(source, pool, [0, 1, other], text)
    assert first != below == beside
    assert first and below and (first.kind, below.kind) == ("1 ahead", "2 ahead")
    assert len(head.roots) == 1


def test_what_others_hang_is_guessed_on_from_at_no_cost() -> None:
    head, source, text = fed()
    pool = line(0, [8, 4, 5, 3, 6, 7, 8])
    assert source.open(pool, text) == [0] and not source.is_free
    ask(source, pool, [0], text)
    assert source.is_free
    assert source.open(pool, text) == [1, 2, 4], "3 ends a text, and the block has five places"
    ask(source, pool, [1, 2, 4], text)
    assert len(head.roots) == 1 and source.open(pool, text) == []


def test_what_follows_an_accepted_path_is_guessed_anew() -> None:
    head, source, text = fed()
    pool = line(0, [8, 4, 5])
    ask(source, pool, [0], text)
    feed(head, [*PROMPT, 8, 4])
    source.follow(pool, text, [0, 1], 2)
    pool.follow(2)
    assert head.committed == (*PROMPT, 8, 4)
    assert source.open(pool, text) == [2] and not source.is_free and not source.said(text)


def test_the_step_at_the_root_is_a_draft_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was none from d9b7a76e on: its time was the round's rest, and no price of guesses."""
    steps: list[int] = []
    learn = Engine._learn

    def spied(engine: Engine, n_growing: int) -> None:
        steps.append(engine.pass_.draft_steps)
        learn(engine, n_growing)

    monkeypatch.setattr(Engine, "_learn", spied)
    run(FakeBlockHead())
    assert steps.count(1) > len(steps) // 2
