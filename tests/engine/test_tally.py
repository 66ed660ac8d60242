"""What rounds cost and brought, added up and told to the outside."""

from __future__ import annotations

from edgespec.engine.outcome import RoundOutcome, Tally
from edgespec.values import RoundCost


def outcome(accepted: int) -> RoundOutcome:
    return RoundOutcome(
        n_tokens=accepted + 1,
        accepted=accepted,
        drafted=8,
        verified=6,
        best_confidence=0.5,
        best_length=3,
        best_correct=accepted,
        provisional_drafted=2,
        provisional_kept=1,
        draft_steps=4,
        draft_s=0.25,
        passes=1,
        pass_s=1.0,
        stall_s=0.75,
        wall_s=1.5,
    )


def test_every_round_is_told_with_its_cost():
    told = Tally(outcomes=[outcome(0), outcome(2)]).speculation().round_costs
    assert told == (
        RoundCost(1, 0, 6, 1, draft_s=0.25, pass_s=1.0, stall_s=0.75, wall_s=1.5),
        RoundCost(3, 2, 6, 1, draft_s=0.25, pass_s=1.0, stall_s=0.75, wall_s=1.5),
    )


def test_a_round_is_drafting_stall_computing_and_the_rest():
    cost = outcome(0).cost
    assert (cost.compute_s, cost.other_s) == (0.25, 0.25)
    assert cost.draft_s + cost.stall_s + cost.compute_s + cost.other_s == cost.wall_s


def test_decoding_is_the_rounds_alone():
    timings = Tally(prompt_s=4.0, outcomes=[outcome(0), outcome(2)]).timings()
    assert (timings.prompt_s, timings.decode_s) == (4.0, 3.0)
    assert timings.first_token_s == 5.5
    assert timings.tokens_per_s == 4 / 3.0
