"""Tries which of ggml's CPU kernels are batch invariant: they compute the same product of a row, to
the last bit, however many rows are computed with it.

Multiplies small matrices of known values; knows no model.
"""

from __future__ import annotations

import functools
import math

from edgespec_runtimes.gguf.llama import ggml

N_ROWS = 25
"""Most rows that are tried."""
_PACKED_SHAPE, _PAIR_SHAPE = (512, 72), (256, 48)
"""Inputs and outputs of the weights that are tried: enough to reach every kernel."""


def is_invariant_when_packed(kind: int, n_in: int, n_out: int) -> bool:
    """True if weights [n_out, n_in], packed as resident models pack them, multiply several rows as
    they multiply one, or stay unpacked."""
    buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
    return buffer_type is None or _is_invariant_in(buffer_type, kind)


@functools.cache
def _is_invariant_in(buffer_type: int, kind: int) -> bool:
    n_in, n_out = _PACKED_SHAPE
    weights = ggml.quantised(kind, distinct_values(n_out * n_in, 0.73, n_in), n_in)
    rows = distinct_values(N_ROWS * n_in, 0.37, n_in)
    each = [rows[i : i + n_in] for i in range(0, len(rows), n_in)]
    alone = [ggml.product(buffer_type, kind, weights, row, n_in) for row in each]
    return b"".join(alone) == ggml.product(buffer_type, kind, weights, rows, n_in)


@functools.cache
def is_invariant_as_stored(kind: int, n_rows: int = N_ROWS) -> bool:
    """True if unpacked weights of this type multiply up to `n_rows` rows as they multiply one."""
    n_in, n_out = _PAIR_SHAPE
    weights = ggml.quantised(kind, distinct_values(n_out * n_in, 0.73, n_in), n_in)
    rows = distinct_values(n_rows * n_in, 0.37, n_in)
    multiply = functools.partial(ggml.product, ggml.plain_buffer_type(), kind, weights)
    each = [multiply(rows[i : i + n_in], n_in) for i in range(0, len(rows), n_in)]
    numbers = {n for n in (2, 3, 4, n_rows - 1, n_rows) if n <= n_rows}
    return all(multiply(rows[: n * n_in], n_in) == b"".join(each[:n]) for n in numbers)


@functools.cache
def is_invariant_from_two_rows(kind: int) -> bool:
    """True if unpacked weights of this type multiply any two or more rows alike."""
    n_in, n_out = _PAIR_SHAPE
    weights = ggml.quantised(kind, distinct_values(n_out * n_in, 0.73, n_in), n_in)
    rows = distinct_values(N_ROWS * n_in, 0.37, n_in)
    multiply = functools.partial(ggml.product, ggml.plain_buffer_type(), kind, weights)
    together = multiply(rows, n_in)
    row_bytes = 4 * n_out
    for i in (0, N_ROWS // 2, N_ROWS - 1):
        row = rows[i * n_in : (i + 1) * n_in]
        expected = together[i * row_bytes : (i + 1) * row_bytes]
        if multiply(row + row, n_in)[:row_bytes] != expected:
            return False
    return all(
        multiply(rows[: n * n_in], n_in) == together[: n * row_bytes] for n in (2, 3, 4, 7, 8)
    )


def distinct_values(n: int, step: float, n_in: int) -> list[float]:
    """Numbers between -1 and 1 that repeat nowhere."""
    return [math.sin(step * i + 0.01 * (i // n_in)) for i in range(n)]
