"""Costs and results of rounds, added up and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgespec.engine.engine import Engine
from edgespec.engine.outcome import RoundOutcome, Tally
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.round import Round
from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import Slot
from edgespec.rules.acceptance_rules import ACCEPTANCE_RULES
from edgespec.rules.stop_rules import Nodes, StopRule
from edgespec.rules.tree_limits import Limits
from edgespec.tracing.spans import OFF
from edgespec.tree import ROOT, TokenTree
from edgespec.values import PassReport, RoundStats, TokenEvent
from engine_cases import GREEDY, N_VOCAB, PROMPT, counting, finish
from fake_model import FakeModel, fixed_text


def outcome(accepted: int) -> RoundOutcome:
    return RoundOutcome(
        n_tokens=accepted + 1,
        accepted=accepted,
        drafted=8,
        verified=6,
        provisional_drafted=2,
        provisional_kept=1,
        draft_steps=4,
        draft_s=0.25,
        report=PassReport(wall_s=1.0, stall_s=0.75),
        wall_s=1.5,
    )


def test_every_round_is_told_with_its_cost():
    told = Tally(outcomes=[outcome(0), outcome(2)]).speculation().round_costs
    assert told == (
        RoundStats(1, 0, 6, 1, draft_s=0.25, pass_s=1.0, stall_s=0.75, wall_s=1.5),
        RoundStats(3, 2, 6, 1, draft_s=0.25, pass_s=1.0, stall_s=0.75, wall_s=1.5),
    )


def test_a_pass_is_stall_and_computing():
    stats = outcome(0).stats
    assert stats.compute_s == 0.25 == stats.pass_s - stats.stall_s


def test_decoding_is_the_rounds_alone():
    timings = Tally(prompt_s=4.0, outcomes=[outcome(0), outcome(2)]).timings()
    assert (timings.prompt_s, timings.decode_s) == (4.0, 3.0)
    assert timings.first_token_s == 5.5
    assert timings.tokens_per_s == 4 / 3.0


def test_a_first_token_that_came_with_the_prompt_waited_for_no_round():
    """Drafters read the prompt after it, which is part of the prompt's time, not of its own."""
    tally = Tally(prompt_s=4.0, outcomes=[outcome(0), outcome(2)])
    tally.read_prompt(0.5, gave_token=True)
    tally.read_prompt(0.25, gave_token=True)
    assert (tally.timings().prompt_s, tally.timings().first_token_s) == (4.75, 4.5)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_round_tells_what_its_pass_read_and_waited_for(drafts: bool) -> None:
    """Without a draft, too: a round without guesses is summed up by itself."""
    read = PassReport(wall_s=1.0, stall_s=0.5, choice_stall_s=0.25, bytes_read=7)
    target = counting()
    target._report = lambda n_tokens: read  # type: ignore[method-assign]
    with Engine(target, counting() if drafts else None) as engine:
        result = finish(engine.generate(PROMPT, GREEDY, 6))
    costs = result.speculation.round_costs
    assert {(cost.stall_s, cost.bytes_read) for cost in costs} == {(0.5, 7)}


def test_passes_that_a_kept_prefix_saves_are_those_of_the_prompt_without_its_last_token() -> None:
    target = counting()
    target.info = replace(target.info, prompt_batch=2)
    with Engine(target) as engine:
        first = finish(engine.generate(PROMPT, GREEDY, 4))
        again = finish(engine.generate([*PROMPT, *first.tokens], GREEDY, 2))
    assert (first.saved_passes, again.saved_passes) == (0, 4), "7 tokens, 2 at a time"


GUESSES = {"n_candidates": 1, "draft_max": 2, "lookup": False}


class Misses(StopRule):
    """Grows full trees, and keeps of each round whether the last guesses on its path were wrong."""

    name = "misses"

    def __init__(self) -> None:
        self.found: list[bool] = []

    def observe(self, tree: TokenTree, nodes: Nodes, path: Nodes, tokens: Sequence[int]) -> Misses:
        guessed = [n for n, node in enumerate(path) if tree.children(node)]
        found = [tree.child(path[n], tokens[n]) is None for n in guessed]
        self.found.append(bool(found) and found[-1])
        return self


def misses(draft: FakeModel, **limits: Any) -> list[bool]:
    """True for each round of a text whose guesses after the last accepted node were all wrong."""
    settings = EngineSettings(step_aside=False, **GUESSES)
    rule = Misses()
    with Engine(counting(), draft, settings) as engine:
        engine.planner.stop_rule = rule
        finish(engine.generate(PROMPT, GREEDY, **limits))
    return rule.found


def test_guesses_that_are_all_wrong_are_a_miss() -> None:
    wrong = FakeModel(fixed_text([11], N_VOCAB, 0), N_VOCAB)
    assert misses(wrong, max_tokens=2) == [True, False], "the last token is not guessed at"


def test_a_round_without_guesses_after_its_last_node_misses_nothing() -> None:
    assert misses(counting(), max_tokens=6) == [False, False]


def test_a_right_guess_that_ends_the_text_is_no_miss() -> None:
    assert misses(counting(), max_tokens=6, stop=["b"]) == [False]


def test_a_pass_over_the_root_alone_tells_what_it_waited_for_experts() -> None:
    """It was taken for reads that every pass makes, in which more nodes could have hidden."""
    read = PassReport(wall_s=1.0, stall_s=0.5, choice_stall_s=0.25)
    none = Limits(max_nodes=0, max_branches=1, max_depth=0)
    target = counting()
    target.last_report = read
    slot = Slot(
        target, 0, None, none, ACCEPTANCE_RULES["exact-replay"], RoundPlanner(), lambda: 1.0, OFF
    )
    round_ = Round(slot, TokenTree(1))
    round_.path, round_.events = [ROOT], [TokenEvent("c", 2, "target", 0)]
    round_._measure([ROOT])
    report = round_.outcome.report
    assert (report.stall_s, report.choice_stall_s) == (0.5, 0.25)
