from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.engine.strategy import Controller, Strategy

Cost = tuple[float, int]
"""Seconds and tokens of a round."""

ALL = (Strategy.TREE, Strategy.NONE, Strategy.LINE)
PLAIN = (1.0, 1)
STARTS = [Controller.for_paged_target(*ALL), Controller.for_resident_target(*ALL)]


def rounds(
    rule: Controller, n: int, tree: Cost, line: Cost, plain: Cost = PLAIN
) -> tuple[Controller, list[Strategy]]:
    """Run `n` rounds that cost and bring what is given for each strategy."""
    costs = {Strategy.TREE: tree, Strategy.LINE: line, Strategy.NONE: plain}
    chosen = []
    for _ in range(n):
        chosen.append(rule.strategy)
        rule = rule.observe(*costs[rule.strategy])
    return rule, chosen


def test_a_paged_target_begins_with_a_tree() -> None:
    assert Controller.for_paged_target(*ALL).strategy is Strategy.TREE


def test_a_resident_target_begins_alone_and_soon_tries_a_tree() -> None:
    _, chosen = rounds(Controller.for_resident_target(*ALL), 8, (0.5, 1), (0.5, 1))
    assert chosen[0] is Strategy.NONE and Strategy.TREE in chosen


@pytest.mark.parametrize("start", STARTS, ids=["paged", "resident"])
@pytest.mark.parametrize(
    ("tree", "line", "best"),
    [
        ((1.2, 4), (1.1, 3), Strategy.TREE),
        ((2.0, 2), (1.2, 3), Strategy.LINE),
        ((2.0, 1), (1.5, 1), Strategy.NONE),
    ],
)
def test_the_cheapest_way_is_found(
    start: Controller, tree: Cost, line: Cost, best: Strategy
) -> None:
    _, chosen = rounds(start, 500, tree, line)
    assert chosen.count(best) > 0.85 * 500


@pytest.mark.parametrize(
    ("tree", "line", "best"),
    [((1.2, 4), (1.1, 3), Strategy.TREE), ((2.0, 1), (1.5, 1), Strategy.NONE)],
)
def test_a_way_that_becomes_the_cheapest_is_taken(tree: Cost, line: Cost, best: Strategy) -> None:
    before = {Strategy.TREE: ((2.0, 1), (1.5, 1)), Strategy.NONE: ((1.2, 4), (1.1, 3))}[best]
    rule, _ = rounds(STARTS[0], 200, *before)
    assert rule.preferred is not best
    rule, _ = rounds(rule, 800, tree, line)
    assert rule.preferred is best


@pytest.mark.parametrize("drafted_s", [1.1, 2.0, 10.0])
def test_probing_costs_a_small_share_of_the_time(drafted_s: float) -> None:
    rule, _ = rounds(STARTS[1], 100, (drafted_s, 1), (drafted_s, 1))
    _, chosen = rounds(rule, 5000, (drafted_s, 1), (drafted_s, 1))
    drafted = len(chosen) - chosen.count(Strategy.NONE)
    assert drafted * (drafted_s - 1.0) < 0.03 * 5000


@pytest.mark.parametrize("start", STARTS, ids=["paged", "resident"])
def test_a_difference_within_the_noise_changes_nothing(start: Controller) -> None:
    rule, _ = rounds(start, 500, (1.02, 1), (0.98, 1))
    assert rule.preferred is start.preferred


def test_the_first_round_after_a_change_is_not_counted() -> None:
    """A draft that sat out many rounds first reads what it missed."""
    rule, _ = rounds(STARTS[1], 300, (2.0, 1), (2.0, 1))
    while rule.strategy is not Strategy.TREE:
        rule = rule.observe(*((1.0, 1) if rule.strategy is Strategy.NONE else (2.0, 1)))
    rule = rule.observe(60.0, 1)
    rule, _ = rounds(rule, 10, (1.2, 8), (2.0, 1))
    assert rule.preferred is Strategy.TREE


def test_what_the_draft_reads_first_belongs_to_what_a_probe_costs() -> None:
    rule, excess, before = STARTS[1], 0.0, Strategy.NONE
    for n in range(5000):
        strategy = rule.strategy
        seconds = 1.0 if strategy is Strategy.NONE else 1.2 if strategy is before else 20.0
        excess += seconds - 1.0 if n > 100 else 0.0
        rule, before = rule.observe(seconds, 1), strategy
    assert 0 < excess < 0.03 * 5000


def test_a_round_whose_draft_cost_nothing_brings_no_probe_nearer() -> None:
    rule = STARTS[0]
    for _ in range(100):
        rule = rule.observe(1.0, 3, is_free=True)
    assert rule == STARTS[0]


def test_only_the_given_ways_are_tried() -> None:
    start = Controller.for_resident_target(Strategy.TREE, Strategy.NONE)
    _, chosen = rounds(start, 500, (2.0, 1), (0.1, 1))
    assert Strategy.LINE not in chosen


def test_a_draft_of_half_the_target_s_size_is_not_tried_soon() -> None:
    start = Controller.for_resident_target(*ALL, draft_share=0.5)
    _, ways = rounds(start, 200, (2.0, 1), (2.0, 1))
    assert set(ways) == {Strategy.NONE}


def test_first_probes_together_cost_a_few_percent() -> None:
    _, ways = rounds(STARTS[1], 500, (4.0, 1), (4.0, 1))
    drafted = len(ways) - ways.count(Strategy.NONE)
    assert drafted * 3.0 < 0.06 * 500


@pytest.mark.parametrize("seed", range(5))
def test_luck_makes_no_strategy_the_preferred_one(seed: int) -> None:
    """Rounds bring one to six tokens, whichever way they go, and a line is a fifth dearer."""
    random = np.random.default_rng(seed)
    rule, ways = STARTS[0], []
    for _ in range(400):
        ways.append(rule.strategy)
        tokens = 1 if rule.strategy is Strategy.NONE else int(random.integers(1, 7))
        rule = rule.observe(1.2 if rule.strategy is Strategy.LINE else 1.0, tokens)
    assert ways.count(Strategy.TREE) > 0.8 * 400


def test_a_few_unlucky_rounds_do_not_end_a_probe() -> None:
    """Four tokens a round on average, and none but the target's own in the first ones."""
    rule, tokens = STARTS[1], iter([1, 1, 2, 1, 1] + [8, 2] * 100)
    for _ in range(60):
        drafts = rule.strategy is not Strategy.NONE
        rule = rule.observe(*((2.0, next(tokens)) if drafts else PLAIN))
    assert rule.preferred is not Strategy.NONE


def test_a_probe_that_cannot_say_costs_a_few_rounds() -> None:
    random = np.random.default_rng(3)
    rule, excess = STARTS[1], 0.0
    for _ in range(300):
        drafts = rule.strategy is not Strategy.NONE
        cost = (4.0, int(random.integers(1, 5))) if drafts else PLAIN
        excess += cost[0] - cost[1]
        rule = rule.observe(*cost)
    assert rule.preferred is Strategy.NONE
    assert 0 < excess < 0.1 * 300


def test_what_goes_slower_than_without_guesses_is_left_when_its_rounds_have_shown_it() -> None:
    """Not at the next probe alone: what a token without guesses costs is known by then."""
    rule, _ = rounds(STARTS[1], 60, (1.0, 2), (4.0, 1))
    assert rule.preferred is Strategy.TREE
    waiting = (replace(trial, wait=4096) for trial in rule.trials[1:])
    rule = replace(rule, trials=(rule.trials[0], *waiting))
    _, ways = rounds(rule, 200, (1.3, 1), (4.0, 1))
    assert ways[-100:].count(Strategy.NONE) > 80


def test_no_token_without_guesses_is_tried_where_reading_alone_takes_longer() -> None:
    rule, ways = STARTS[0], []
    for _ in range(400):
        ways.append(rule.strategy)
        rule = rule.observe(1.1, 4, least_pass_s=1.0)
    assert Strategy.NONE not in ways and Strategy.LINE in ways


def test_another_run_begins_where_one_left_off() -> None:
    taught, _ = rounds(STARTS[1], 300, (4.0, 1), (4.0, 1))
    assert taught.preferred is Strategy.NONE
    begun = STARTS[1].recalled(taught.numbers())
    assert [(t.strategy, t.wait) for t in begun.trials] == [
        (t.strategy, t.wait) for t in taught.trials
    ]


def test_a_paged_target_does_not_go_without_guesses_for_long_for_what_an_earlier_run_saw() -> None:
    """Its disk was faster then, perhaps."""
    taught, _ = rounds(STARTS[0], 300, (4.0, 1), (4.0, 1))
    assert taught.preferred is Strategy.NONE
    _, ways = rounds(STARTS[0].recalled(taught.numbers()), 200, (1.0, 4), (4.0, 1))
    assert ways.count(Strategy.TREE) > 100


def test_what_was_recalled_is_tried_again_when_its_time_has_come() -> None:
    taught, _ = rounds(STARTS[0], 300, (4.0, 1), (4.0, 1))
    rule, _ = rounds(STARTS[0].recalled(taught.numbers()), 5000, (1.0, 4), (4.0, 1))
    assert rule.preferred is Strategy.TREE


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"tree is best": 1.0, "none is best": 1.0},
        {"forest is best": 1.0},
        {"none waits": -3.0},
    ],
)
def test_numbers_that_make_no_sense_are_left_out(numbers: dict[str, float]) -> None:
    assert STARTS[0].recalled(numbers) == STARTS[0]
