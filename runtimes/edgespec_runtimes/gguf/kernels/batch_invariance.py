"""Tests which of ggml's CPU kernels are batch invariant.

Such kernels compute the same product of a row, to the last bit, whatever the number of rows.
Multiplies small matrices of known values; knows no model.
"""

from __future__ import annotations

import functools

import numpy as np

from edgespec_runtimes.gguf.llama import ggml, log

N_ROWS = 25
"""Most rows to test."""
_PACKED_SHAPE, _PAIR_SHAPE = (512, 72), (256, 48)
"""Inputs and outputs of the test weights, which cover every kernel."""


@functools.cache
def is_invariant_in(buffer_type: int, kind: int) -> bool:
    """True if products of weights that such a buffer packs are the same per row for 1 to `N_ROWS`
    rows."""
    trial = RowTrial(kind, *_PACKED_SHAPE, buffer_type)

    def agrees() -> bool:
        return b"".join(map(trial.alone, range(N_ROWS))) == trial.together(N_ROWS)

    with log.captured():  # ggml tells of each packing, and no model may be open yet
        # what varies does so every time; a machine that computes wrongly once decides nothing
        return agrees() or agrees()


@functools.cache
def is_invariant_as_stored(kind: int, n_rows: int = N_ROWS) -> bool:
    """True if products of unpacked weights with 1 to `n_rows` rows are the same per row."""
    trial = RowTrial(kind, *_PAIR_SHAPE, ggml.plain_buffer_type())
    each = [trial.alone(i) for i in range(n_rows)]
    numbers = {n for n in (2, 3, 4, n_rows - 1, n_rows) if n <= n_rows}
    return all(trial.together(n) == b"".join(each[:n]) for n in numbers)


@functools.cache
def is_invariant_from_two_rows(kind: int) -> bool:
    """True if products of unpacked weights with two or more rows are the same per row."""
    trial = RowTrial(kind, *_PAIR_SHAPE, ggml.plain_buffer_type())
    whole, size = trial.together(N_ROWS), trial.product_bytes
    return all(
        trial.alone(i, times=2)[:size] == whole[i * size : (i + 1) * size]
        for i in (0, N_ROWS // 2, N_ROWS - 1)
    ) and all(trial.together(n) == whole[: n * size] for n in (2, 3, 4, 7, 8))


class RowTrial:
    """Known weights [n_out, n_in] of a type, and known rows that they multiply."""

    def __init__(self, kind: int, n_in: int, n_out: int, buffer_type: int) -> None:
        weights = ggml.quantised(kind, distinct_values(n_out, n_in, 0.73))
        self._multiply = functools.partial(ggml.product, buffer_type, kind, weights)
        self._rows = distinct_values(N_ROWS, n_in, 0.37)
        self.product_bytes = 4 * n_out
        """Bytes of one row's product."""

    def alone(self, row: int, times: int = 1) -> bytes:
        """The product of a row, computed with `times` copies of the row."""
        return self._multiply(self._rows[[row] * times])

    def together(self, n_rows: int) -> bytes:
        """The products of the first `n_rows` rows."""
        return self._multiply(self._rows[:n_rows])


def distinct_values(n_rows: int, n_in: int, step: float) -> np.ndarray:
    """Distinct numbers between -1 and 1, float32 [n_rows, n_in]."""
    places = np.arange(n_rows * n_in).reshape(n_rows, n_in)
    return np.sin(step * places + 0.01 * (places // n_in)).astype(np.float32)
