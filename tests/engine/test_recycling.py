"""Guesses from the target's own words."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.engine.drafting.recycling import RecyclingDrafter, SuccessorTable
from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.rules.sampling import SamplingParams
from edgespec.tree import ROOT, TokenTree
from engine_cases import GREEDY, N_VOCAB, WARM, assert_nothing_provisional, finish
from fake_model import FakeModel, random_language


def row(*best: int) -> np.ndarray:
    """Logits that rank these tokens first."""
    logits = np.zeros(N_VOCAB, np.float32)
    for rank, token in enumerate(best):
        logits[token] = 5.0 - rank
    return logits


def observed(*best: int) -> tuple[RecyclingDrafter, TokenTree]:
    """A drafter that saw what the target said after token 3, before which stood 7."""
    drafter = RecyclingDrafter(frozenset([11]))
    drafter.catch_up([7])
    tree = TokenTree(3, 16)
    drafter.observe_logits(tree, [ROOT], row(*best)[None])
    return drafter, tree


def guessed(drafter: RecyclingDrafter, tree: TokenTree, node: int) -> list[int] | None:
    drafter.step(tree, [node])
    opinion = drafter.opinion(int(tree.key[node]))
    return None if opinion is None else list(opinion.tokens)


def test_the_target_s_best_successors_are_guessed_best_first() -> None:
    drafter, tree = observed(5, 4, 9, 1)
    assert guessed(drafter, tree, ROOT) == [5, 4, 9, 1]


def test_the_same_two_tokens_say_more_than_the_last_one() -> None:
    drafter, _ = observed(5, 4, 9, 1)
    tree = TokenTree(8, 16)
    elsewhere = tree.add(tree.add(ROOT, 7, 0.9), 3, 0.9)
    drafter.observe_logits(tree, [elsewhere], row(6, 5, 4, 2)[None])
    other = tree.add(ROOT, 3, 0.9)
    drafter.observe_logits(tree, [other], row(2, 1, 0, 4)[None])
    drafter.step(tree, [elsewhere, other])
    by_pair, last = (drafter.opinion(int(tree.key[node])) for node in (elsewhere, other))
    assert by_pair is not None and last is not None
    assert list(by_pair.tokens) == [6, 5, 4, 2]
    assert list(last.tokens) == [2, 1, 0, 4]
    tree.add(elsewhere, 0, 0.9)
    unseen_pair = tree.add(other, 3, 0.9)
    assert guessed(drafter, tree, unseen_pair) == [2, 1, 0, 4]


def test_a_token_that_was_never_seen_gives_no_guess() -> None:
    drafter, tree = observed(5)
    assert guessed(drafter, tree, tree.add(ROOT, 9, 0.5)) is None


def test_nothing_is_guessed_after_the_end_of_a_text() -> None:
    drafter, tree = observed(11, 5)
    assert tree.add(ROOT, 11, 0.5) not in drafter.open_nodes(tree)


def test_a_table_keeps_the_latest_and_no_more_than_it_has_rows() -> None:
    table = SuccessorTable(n_rows=8)
    for key in range(20):
        table.put(key, np.array([key]), np.array([1.0]))
    table.put(15, np.array([99]), np.array([1.0]))
    assert len(table) == 8
    assert [table.get(key) is not None for key in (11, 12, 19)] == [False, True, True]
    known = table.get(15)
    assert known is not None and known[0][0] == 99


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_target_s_words_save_passes_and_change_no_token(sampling: SamplingParams) -> None:
    target = FakeModel(random_language(4, N_VOCAB, order=1), N_VOCAB)
    results = []
    for lookup in (False, True):
        with Engine(target, settings=EngineSettings(lookup=lookup, step_aside=False)) as engine:
            results.append(finish(engine.generate([1, 2, 3], sampling, 80)))
        assert_nothing_provisional(target)
    assert results[0].tokens == results[1].tokens
    assert results[1].speculation.tokens_per_pass > 1.5
