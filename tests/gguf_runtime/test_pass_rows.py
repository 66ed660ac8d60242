"""The logits of a pass are handed out in the order of the nodes, without a copy of them all."""

import numpy as np
import pytest

from edgespec_runtimes.gguf.context.rows import in_order, permute


def test_rows_are_moved_in_place_as_an_index_would_copy_them() -> None:
    rng = np.random.default_rng(0)
    for n in range(12):
        rows = rng.standard_normal((n, 3)).astype(np.float32)
        order = rng.permutation(n).tolist()
        expected = rows[order]
        permute(rows, order)
        assert np.array_equal(rows, expected)


def test_the_parts_of_a_pass_are_views_of_its_logits() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(6, 2)
    expected = logits[[1, 0]], logits[[4, 2, 3]], logits[[5]]
    parts = in_order(logits, [[1, 0], [], [4, 2, 3], [5]])
    assert [len(part) for part in parts] == [2, 0, 3, 1]
    for part, rows in zip((parts[0], *parts[2:]), expected, strict=True):
        assert np.array_equal(part, rows)
        assert np.shares_memory(part, logits)


@pytest.mark.parametrize("orders", [[[0]], [[0], []], [[], [0]]])
def test_a_single_row_goes_to_the_part_whose_node_it_is(orders: list[list[int]]) -> None:
    """A part without nodes reads its prompt, of which more follows in later passes."""
    parts = in_order(np.ones((1, 3), np.float32), orders)
    assert [len(part) for part in parts] == [len(order) for order in orders]
