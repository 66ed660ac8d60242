"""Lines of a file in groups, by the model that answers them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from edgespec.batch.answered import Answered, LineGroups
from edgespec.batch.lines import BatchAnswer, BatchRequest, numbered_lines, request_key

MODELS = ["", "a", "b"]


def lines(*named: str) -> Iterator[tuple[int, bytes | None]]:
    """Lines such as `a1`, request 1 to model a; `?` is none."""
    texts = [
        json.dumps(
            {"custom_id": one[1], "url": "/v1/completions", "body": {"model": one[0], "prompt": ""}}
        )
        if one != "?"
        else "?"
        for one in named
    ]
    return numbered_lines(io.BytesIO("\n\n".join(texts).encode()), 1000)


def group_of(request: BatchRequest) -> int:
    return MODELS.index(request.body["model"])


def numbers(named: list[str], group: int, earlier: Answered | None = None) -> list[int]:
    groups = LineGroups(lines(*named), group_of, earlier or Answered())
    return [number for number, _ in groups.of(group, lines(*named))]


def test_each_line_is_in_the_group_of_its_model_and_keeps_its_number() -> None:
    named = ["b1", "a2", "b3"]
    assert (numbers(named, 1), numbers(named, 2)) == ([3], [1, 5])


def test_lines_that_need_no_model_are_in_group_0() -> None:
    """Invalid ones, those with an earlier line's custom_id, and those that were answered."""
    done = Answered([BatchAnswer(request_key("3"), 200)])
    assert numbers(["b1", "?", "a1", "b3"], 0, done) == [3, 5, 7]


def test_a_model_that_no_line_needs_is_not_loaded() -> None:
    groups = LineGroups(lines("b1"), group_of, Answered())
    assert 2 in groups and 1 not in groups


def test_lines_that_came_later_are_left_for_the_next_run() -> None:
    groups = LineGroups(lines("b1"), group_of, Answered())
    assert [number for number, _ in groups.of(2, lines("b1", "b2"))] == [1]
