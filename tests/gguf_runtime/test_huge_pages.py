"""Huge pages of resident weights."""

from __future__ import annotations

import pytest

from edgespec_runtimes.gguf.llama.page_advice import HUGE_BYTES, whole_pages


@pytest.mark.parametrize(
    ("begin", "nbytes", "found"),
    [
        (0, HUGE_BYTES, (0, HUGE_BYTES)),
        (1, 3 * HUGE_BYTES, (HUGE_BYTES, 3 * HUGE_BYTES)),
        (HUGE_BYTES - 1, HUGE_BYTES + 1, (HUGE_BYTES, 2 * HUGE_BYTES)),
    ],
)
def test_only_pages_within_the_range_are_huge(
    begin: int, nbytes: int, found: tuple[int, int]
) -> None:
    assert whole_pages(begin, begin + nbytes, HUGE_BYTES) == found


def test_a_range_that_holds_no_huge_page_has_none() -> None:
    begin, end = whole_pages(1, 1 + HUGE_BYTES, HUGE_BYTES)
    assert begin >= end
