"""Trees of targets that compute each branch as a line: their rows, and what they are worth."""

from __future__ import annotations

import math
from dataclasses import replace

from edgespec.engine.planning.credit import Credit
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.engine.settings import EngineSettings
from edgespec.rules.pacer import most_probable
from edgespec.rules.stop_rules import RoundSoFar
from edgespec.rules.tree_limits import Limits
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport
from engine_cases import N_VOCAB, generate
from fake_model import FakeModel, random_language

LINES = Limits(max_nodes=33, max_branches=4, max_depth=8)


def forked() -> TokenTree:
    """A line of three guesses, and two other successors of the root."""
    tree = TokenTree(0)
    end = ROOT
    for token in range(3):
        end = tree.add(end, token, 0.9)
    for token in range(3, 5):
        tree.add(ROOT, token, 0.4)
    return tree


def rows(limits: Limits) -> list[int]:
    """Rows of passes over the most probable nodes, best first."""
    found = most_probable([forked()], [limits], limits.max_nodes, limits.max_branches)
    return [n_rows for _, _, n_rows in found]


def planner(read_s: float, row_s: float = 0.1) -> RoundPlanner:
    passes = PassCurve()
    for n_rows in (1, 2, 4, 8, 16):
        compute_s = row_s * n_rows
        pass_s = max(read_s, compute_s)
        report = PassReport(pass_s, pass_s - compute_s, read_s=read_s)
        passes.see_pass(n_rows, report)
    costs = RoundCosts(passes, seen_step_s=0.001, seen_overhead_s=0.001)
    return RoundPlanner(costs, Credit(room=99, granted=3.2), lines=LINES)


def n_best(value: RoundPlanner) -> int:
    return value.best(math.inf, RoundSoFar(forked(), [])).n_rows


def test_rows_are_those_of_lines_as_long_as_the_longest() -> None:
    assert rows(LINES) == [1, 2, 3, 4, 2 * 4, 3 * 4]


def test_no_branch_beyond_the_limit_is_counted() -> None:
    assert rows(replace(LINES, max_branches=2)) == [1, 2, 3, 4, 8]


def test_branches_are_verified_where_reads_hide_their_lines_and_not_where_rows_cost() -> None:
    assert n_best(planner(read_s=5.0)) == len(forked())
    assert n_best(planner(read_s=0.15)) < len(forked()) - 1
    nodes = replace(planner(read_s=0.4), lines=None)
    assert n_best(planner(read_s=0.4)) <= n_best(nodes)


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
    assert [limits.before_pass(n_free, 99).max_branches for n_free in (100, 20, 9, 1)] == [
        3,
        2,
        1,
        1,
    ]
