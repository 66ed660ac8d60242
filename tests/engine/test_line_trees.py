"""Trees of targets that compute each branch as a line: their rows."""

from __future__ import annotations

from edgespec.engine.settings import EngineSettings
from edgespec.rules.pacer import Limits, before_pass, most_probable
from engine_cases import N_VOCAB, generate
from fake_model import FakeModel, random_language
from one_tree import ROOT, OneTree


def rows(max_branches: int) -> list[int]:
    """Rows of passes over the most probable nodes, best first, of a line of three guesses and two
    other successors of the root."""
    tree, end = OneTree(0), ROOT
    for token in range(3):
        end = tree.add(end, token, 0.9)
    for token in range(3, 5):
        tree.add(ROOT, token, 0.4)
    limits = Limits(max_nodes=33, max_branches=max_branches, max_depth=8)
    return [n_rows for _, n_rows in most_probable(tree, {0: limits}, 33, max_branches)]


def test_rows_are_those_of_lines_as_long_as_the_longest() -> None:
    assert rows(4) == [1, 2, 3, 4, 2 * 4, 3 * 4]


def test_no_branch_beyond_the_limit_is_counted() -> None:
    assert rows(2) == [1, 2, 3, 4, 8]


def test_trees_are_grown_for_a_target_that_computes_lines() -> None:
    target = FakeModel(
        random_language(7, N_VOCAB),
        N_VOCAB,
        tree_capable=False,
        max_rollback=4,
        max_nodes=13,
        max_branches=3,
        n_ctx=64,
    )
    draft = FakeModel(random_language(8, N_VOCAB), N_VOCAB)
    result = generate(target, draft, fallback="full", lookup=False)
    assert max(target.evaluations) > 5, "trees, not lines of up to five nodes"
    assert len(result.tokens) == 20


def test_near_the_contexts_end_lines_are_fewer() -> None:
    info = FakeModel(
        random_language(7, N_VOCAB), N_VOCAB, tree_capable=False, max_rollback=4, max_branches=3
    ).info
    limits = EngineSettings().limits_for(info)
    found = [before_pass(limits, n, 99, are_lines=True).max_branches for n in (100, 20, 9, 1)]
    assert found == [3, 2, 1, 1]
