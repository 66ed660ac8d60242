"""Costs and results of rounds, added up and reported."""

from __future__ import annotations

import pytest

from edgespec.engine.outcome import Tally
from edgespec.values import PassReport, RoundStats
from engine_cases import GREEDY, PROMPT, counting, finish
from engine_cases import AskedEngine as Engine


def cost(accepted: int) -> RoundStats:
    return RoundStats(
        n_tokens=accepted + 1,
        accepted=accepted,
        verified=6,
        passes=1,
        draft_s=0.25,
        pass_s=1.0,
        stall_s=0.75,
        wall_s=1.5,
    )


def test_every_round_is_told_with_its_cost():
    told = Tally(rounds=[cost(0), cost(2)]).speculation()
    assert told.round_costs == (cost(0), cost(2))
    assert (told.verified, told.accepted, told.draft_s) == (12, 2, 0.5)


def test_a_pass_is_stall_and_computing():
    assert cost(0).compute_s == 0.25 == cost(0).pass_s - cost(0).stall_s


def test_decoding_is_the_rounds_alone():
    timings = Tally(prompt_s=4.0, rounds=[cost(0), cost(2)]).timings()
    assert (timings.prompt_s, timings.decode_s) == (4.0, 3.0)
    assert timings.first_token_s == 5.5
    assert timings.tokens_per_s == 4 / 3.0


def test_a_first_token_that_came_with_the_prompt_waited_for_no_round():
    """Drafters read the prompt after it, which is part of the prompt's time, not of its own."""
    tally = Tally(prompt_s=4.75, first_token_s=4.5, rounds=[cost(0), cost(2)])
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
    assert {(each.stall_s, each.bytes_read) for each in costs} == {(0.5, 7)}
