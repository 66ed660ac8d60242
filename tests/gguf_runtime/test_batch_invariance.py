"""Trials of ggml's products say which types round alike for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgespec_runtimes.gguf.file.layout import KINDS, ONE, TILED
from edgespec_runtimes.gguf.kernels import batch_invariance
from edgespec_runtimes.gguf.kernels.batch_invariance import (
    N_ROWS,
    is_invariant_as_stored,
    is_invariant_in,
)
from edgespec_runtimes.gguf.kernels.invariant_kernels import PRODUCT_TILE_ROWS


class FakeKernels:
    """Products of rows that are wrong in the trials of these numbers."""

    def __init__(self, wrong: set[int]) -> None:
        self.n_trials, self._wrong = 0, wrong

    def alone(self, row: int) -> bytes:
        return bytes([row])

    def together(self, n_rows: int) -> bytes:
        self.n_trials += 1
        return bytes(n_rows) if self.n_trials in self._wrong else bytes(range(n_rows))


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    is_invariant_in.cache_clear()
    yield
    is_invariant_in.cache_clear()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(set(), True), ({1}, True), ({1, 2}, False)],
    ids=["never", "once", "always"],
)
def test_a_type_varies_if_it_does_so_twice(
    wrong: set[int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing decides about the text, so that one wrong answer must not."""
    kernels = FakeKernels(wrong)
    monkeypatch.setattr(batch_invariance, "RowTrial", lambda *shape: kernels)
    assert N_ROWS < 256
    assert is_invariant_in(1, 2) == expected


SLOWLY_MADE = ("IQ1", "IQ2", "IQ3")
"""Beginnings of the names of types whose weights take seconds to make."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * name.startswith(SLOWLY_MADE))
        for name, kind in KINDS.items()
        if kind.kernels in (ONE, TILED)
    ],
)
def test_no_type_rounds_worse_than_its_line_says(name: str) -> None:
    """A newer llama.cpp may multiply a type by other kernels, or in tiles of fewer rows."""
    n_rows = PRODUCT_TILE_ROWS - 1 if KINDS[name].kernels is TILED else N_ROWS
    assert is_invariant_as_stored(KINDS[name].code, n_rows)
