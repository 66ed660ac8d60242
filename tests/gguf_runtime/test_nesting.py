"""Nested weights: both parts are the file's bytes again, and the upper one is close to them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgespec_runtimes.gguf.llama import ggml
from edgespec_runtimes.gguf.own_draft.nesting import MERGING_BYTES, NESTINGS, UNIT, Nesting
from tests.gguf_files import TYPE_CODES, pack_weights

N_UNITS = 2100
"""More than are merged at a time."""
NESTING = {f"{kind}-{n.upper.name}": n for kind, found in NESTINGS.items() for n in found}
KINDS = sorted(NESTING)


def weights() -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((N_UNITS, UNIT)).astype(np.float32)
    values *= np.exp(np.random.default_rng(1).standard_normal((N_UNITS, 1)) - 4).astype(np.float32)
    values[3], values[4, :200], values[5] = 0, 0, 1e-7
    return values


def units_of(kind: str) -> np.ndarray:
    return np.frombuffer(pack_weights(weights(), kind[:4]), np.uint8).reshape(N_UNITS, -1)


def merged(nesting: Nesting, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    out = np.full((len(upper), nesting.file_bytes), 0xA5, np.uint8)
    nesting.merge(upper, lower, out)
    return out


def floats(code: int, units: np.ndarray) -> np.ndarray:
    out = np.empty((len(units), UNIT), np.float32)
    convert = ggml.to_float(code)
    for unit, row in zip(np.ascontiguousarray(units), out, strict=True):
        convert(unit.ctypes.data, row.ctypes.data, UNIT)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_are_the_files_bytes(kind: str):
    units, nesting = units_of(kind), NESTING[kind]
    upper, lower = nesting.split(units)
    assert (upper.shape[1], lower.shape[1]) == (nesting.upper_bytes, nesting.lower_bytes)
    tracemalloc.start()
    out = merged(nesting, upper, lower)
    assert tracemalloc.get_traced_memory()[1] <= out.nbytes + MERGING_BYTES
    tracemalloc.stop()
    assert (out == units).all()


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_come_back_or_have_no_parts(kind: str):
    """Hostile blocks: scales that are negative, infinite, not numbers, or far too large."""
    nesting = NESTING[kind]
    drawn = np.random.default_rng(2).integers(0, 256, (4000, nesting.file_bytes), np.uint8)
    n_split = 0
    for unit in drawn[:, None]:
        if (parts := nesting.split(unit)) is not None:
            n_split += 1
            assert (merged(nesting, *parts) == unit).all()
            assert np.isfinite(floats(nesting.upper.code, parts[0])).all()
    assert n_split == 4000 or nesting.split(drawn) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_upper_part_is_close_to_the_weights(kind: str):
    units, nesting = units_of(kind), NESTING[kind]
    near = floats(nesting.upper.code, nesting.split(units)[0])
    stored = floats(TYPE_CODES[kind[:4]], units)
    decibels = 10 * np.log10((stored**2).sum() / ((near - stored) ** 2).sum())
    assert decibels > {"Q4_K": 20, "Q3_K": 15.5, "Q2_K": 10.5}[nesting.upper.name]
    assert (near * stored).sum() == pytest.approx((stored**2).sum(), rel=0.015)  # not smaller


def test_a_scale_that_the_upper_part_cannot_hold_has_no_parts():
    for scale in (np.inf, -np.inf, np.nan, -1.0, 60_000.0):
        units = units_of("Q8_0-").copy()
        units[7, 34:36] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        assert NESTING["Q8_0-Q4_K"].split(units) is None
