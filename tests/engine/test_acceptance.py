from __future__ import annotations

import numpy as np
import pytest

from edgespec.engine.acceptance import ACCEPTANCE_RULES, Accepted, ExactReplay
from edgespec.engine.sampling import Sampler, SamplingParams
from edgespec.tree import ROOT, TokenTree

N_VOCAB = 8


def favouring(*tokens: int) -> np.ndarray:
    """A row of logits per token that makes it the best one."""
    logits = np.zeros((len(tokens), N_VOCAB), np.float32)
    logits[np.arange(len(tokens)), tokens] = 1.0
    return logits


def accept(tree: TokenTree, nodes: list[int], logits: np.ndarray, *eog: int) -> Accepted:
    return ExactReplay().accept(tree, nodes, logits, Sampler(SamplingParams()), frozenset(eog))


@pytest.fixture
def tree() -> TokenTree:
    """0 -> 1 -> 2, and 0 -> 3."""
    tree = TokenTree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 2, 0.5)
    tree.add(ROOT, 3, 0.5)
    return tree


def test_the_deepest_agreed_path_stands_with_the_targets_own_token(tree: TokenTree) -> None:
    assert accept(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6)) == Accepted((0, 1, 2), 5)


def test_a_path_stands_up_to_the_first_disagreement(tree: TokenTree) -> None:
    assert accept(tree, [0, 1, 2, 3], favouring(1, 7, 5, 6)) == Accepted((0, 1), 7)


def test_any_branch_may_stand(tree: TokenTree) -> None:
    assert accept(tree, [0, 1, 2, 3], favouring(3, 7, 5, 6)) == Accepted((0, 3), 6)


def test_without_agreement_the_target_gives_one_token(tree: TokenTree) -> None:
    assert accept(tree, [0, 1, 2, 3], favouring(4, 2, 5, 6)) == Accepted((0,), 4)


def test_a_guess_that_was_not_verified_does_not_stand(tree: TokenTree) -> None:
    assert accept(tree, [0, 3], favouring(1, 6)) == Accepted((0,), 1)


def test_nothing_stands_after_the_end_of_the_text(tree: TokenTree) -> None:
    assert accept(tree, [0, 1, 2, 3], favouring(1, 2, 5, 6), 1) == Accepted((0,), 1)


def test_what_stands_is_what_the_text_gains(tree: TokenTree) -> None:
    assert Accepted((0, 1, 2), 5).tokens(tree) == [1, 2, 5]


def test_penalties_see_the_tokens_of_the_walk() -> None:
    """At each node token 1 is best and 2 next; once 1 is in the text, its penalty lets 2 win."""
    tree = TokenTree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 1, 0.5)
    logits = np.tile(np.array([[0, 4, 3, 0, 0, 0, 0, 0]], np.float32), (3, 1))
    sampler = Sampler(SamplingParams(repeat_penalty=2.0), prompt=[0])
    assert ExactReplay().accept(tree, [0, 1, 2], logits, sampler, ()) == Accepted((0, 1), 2)


@pytest.mark.parametrize("name", ACCEPTANCE_RULES)
def test_a_rule_registers_under_its_own_name(name: str) -> None:
    assert ACCEPTANCE_RULES[name]().name == name
