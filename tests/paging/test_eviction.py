"""The expert that makes room: pure bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.paging.eviction import LeastLikely


def rule_after(*uses: tuple[int, list[int]], n_layers: int = 3) -> LeastLikely:
    """Two experts of every layer are there; `uses` are layers, in turn, with what was chosen."""
    rule = LeastLikely([4] * n_layers)
    for layer in range(n_layers):
        for expert in (0, 1):
            rule.add(layer, expert)
    for layer, chosen in uses:
        rule.use(layer, np.array([chosen], int))
    return rule


def order(rule: LeastLikely) -> list[tuple[int, int]]:
    """In which all of them would go."""
    gone: list[tuple[int, int]] = []
    while (victim := rule.victim(lambda *unit: unit not in gone)) is not None:
        gone.append(victim)
    return gone


@pytest.mark.parametrize(("at", "layers"), [(0, [0, 2, 1]), (1, [1, 0, 2]), (2, [2, 1, 0])])
def test_the_layer_that_was_just_computed_makes_room_first_and_the_next_one_last(
    at: int, layers: list[int]
) -> None:
    rule = rule_after((at, []))
    assert [layer for layer, expert in order(rule) if expert == 0] == layers


def test_of_a_layer_the_expert_that_was_used_less_goes_first() -> None:
    uses = [(0, [1])] * 3 + [(0, [0])]
    assert order(rule_after(*uses, n_layers=1)) == [(0, 0), (0, 1)]


def test_what_was_used_often_long_ago_gives_way_to_what_is_used_now() -> None:
    uses = [(0, [1])] * 3 + [(0, [0])] * 40
    assert order(rule_after(*uses, n_layers=1)) == [(0, 1), (0, 0)]


def test_what_is_not_there_makes_no_room() -> None:
    rule = rule_after(n_layers=1)
    rule.remove(0, 0)
    assert order(rule) == [(0, 1)]
    rule.remove(0, 1)
    assert order(rule) == []
