"""Kinds of nested weights: the upper bits of codes in a type that ggml computes with, and the lower
bits, which together are the file's bytes again.

Knows blocks of bytes and neither files nor models. A unit is 256 weights of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from edgespec_runtimes.gguf.file.layout import KINDS as TYPES
from edgespec_runtimes.gguf.file.layout import TensorType
from edgespec_runtimes.gguf.own_draft.code_ways import Ways, eight

UNIT = 256
"""Weights of a unit: what a row has a whole number of."""
_CHUNK_UNITS = 2048
MERGING_BYTES = 1024 * _CHUNK_UNITS
"""Memory of the arrays with which units are merged, a chunk at a time."""
_ONE_AT_A_TIME = Lock()
"""Threads that merge wait for the interpreter at each of numpy's many calls: on a Zen 4 three
merged 0.35 GB/s together, and one 0.9."""
_Q8_0 = np.dtype([("scale", "<u2"), ("codes", "V32")])
_MOST = 8.0
"""Largest scale of what nests, many times those of models: scales of upper parts are finite."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """A kind of weights that nests; arrays are uint8 [units, bytes of a unit]."""

    upper: TensorType
    """Type of the upper part."""
    file_bytes: int
    """Bytes of a unit in the model's file."""
    upper_bytes: int
    lower_bytes: int
    split: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray] | None]
    """Upper and lower parts of the file's units; None if a unit has no such parts."""
    join: Callable[[np.ndarray, np.ndarray, np.ndarray], None]
    """Writes the file's units, of their upper and lower parts, to the third array."""

    def merge(self, upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
        """Write the file's bytes of some units to `out`. Other threads compute meanwhile."""
        for begin in range(0, len(out), _CHUNK_UNITS):
            part = slice(begin, begin + _CHUNK_UNITS)
            with _ONE_AT_A_TIME:
                self.join(upper[part], lower[part], out[part])


def _split_q8_0(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 16 * upper + lower. Q4_K has a scale and a minimum for 32 weights, too, of 6 bits;
    the file's own scale is with the lower part."""
    heads, codes, weights = _of_q8_0(units)
    scales = heads.view(np.float16).astype(np.float32)
    if weights is None or not (scales >= 0).all():
        return None
    step = (scales.max(1, keepdims=True) * 16 / 63).astype(np.float16)
    steps = step.astype(np.float32)
    multiples = _rounded(scales * 16, steps, 63)
    least = (steps * ((128 - 7.5) / 16)).astype(np.float16)  # less the mean of the lower 4 bits
    packed = _packed(multiples, multiples)
    uppers = [step.view(np.uint8), least.view(np.uint8), packed, _pack(codes >> 4, 4)]
    return np.concatenate(uppers, 1), np.concatenate([heads, _pack(codes & 15, 4)], 1)


def _join_q8_0(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    codes = _rows(upper, 16, 4)
    codes <<= np.uint64(4)
    codes |= _rows(lower, 16, 4)
    _put_q8_0(codes, lower, out)


def _of_q8_0(units: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Bytes of the scales of units of Q8_0, codes from 0, and weights, both [units, 16, 16]; no
    weights if a scale is too large."""
    blocks = units.reshape(-1, 8, 34)
    heads, codes = np.ascontiguousarray(blocks[..., :2]), blocks[..., 2:]
    scales = heads.view(np.float16).astype(np.float32)
    is_small = bool((np.abs(scales) <= _MOST).all())  # false for what is no number
    weights = (codes.view(np.int8) * scales).reshape(-1, 16, 16) if is_small else None
    return heads.reshape(-1, 16), (codes ^ 128).reshape(-1, 16, 16), weights


def _put_q8_0(codes: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    blocks = out.view(_Q8_0)
    blocks["scale"] = lower[:, :16].view("<u2")
    codes ^= eight(128)
    blocks["codes"] = codes.view("V32").T


def _split_q8_0_by(
    ways: Ways, put: Callable[..., np.ndarray], fit: Callable[..., np.ndarray], units: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """The scales of the upper part are fitted, the file's are with the lower part."""
    heads, codes, weights = _of_q8_0(units)
    if weights is None:
        return None
    upper, lower, numbers = ways.split(codes)
    lowers = [heads, _pack(lower & 15, 4), put(lower >> 4), numbers]
    return fit(upper, weights), np.concatenate(lowers, 1)


def _join_q8_0_by(
    ways: Ways,
    n_high: int,
    uppers: Callable[[np.ndarray], np.ndarray],
    upper: np.ndarray,
    lower: np.ndarray,
    out: np.ndarray,
) -> None:
    lowers = _rows(lower, 16, 4)
    lowers |= _rows(lower, 144, n_high, 4)
    _put_q8_0(ways.join(lower, uppers(upper), lowers), lower, out)


def _split_by(
    ways: Ways, put: Callable[[np.ndarray], np.ndarray], units: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Scales and minima of Q4_K and Q5_K are with the lower part as they were; those of Q2_K, for
    16 weights, are fitted."""
    head, nibbles = units[:, :16], units[:, -128:].reshape(-1, 4, 32)
    codes = np.stack([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32)
    if ways is _Q5_K:
        bits = np.unpackbits(units[:, 16:48, None], axis=2, bitorder="little")
        codes |= bits.swapaxes(1, 2) << 4
    step, least = _floats(head[:, :2]), _floats(head[:, 2:4])
    if not (np.abs([step, least]) <= _MOST).all():  # false for what is no number
        return None
    scales, minima = _scales(head)
    weights = (codes * (step * scales)[..., None] - (least * minima)[..., None]).reshape(-1, 16, 16)
    upper, lower, numbers = ways.split(codes.reshape(-1, 16, 16))
    return _q2_k(upper, weights), np.concatenate([put(lower), head, numbers], 1)


def _q2_k(upper: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Units of Q2_K with these codes, whose scales and minima are fitted to the weights [units, 16,
    16].

    A line with the least error is too flat, and all layers together then say too little: this one
    has the weights' own spread, which halved the divergence of Qwen2.5-Coder-1.5B from its draft.
    """
    codes = upper.astype(np.float32)
    mean, wanted = codes.mean(2), weights.mean(2)
    slope = np.maximum(_slope(codes - mean[..., None], weights - wanted[..., None]), 0)
    step = (slope.max(1, keepdims=True) / 15).astype(np.float16)
    scales = _rounded(slope, step.astype(np.float32), 15)
    offset = np.maximum(scales * step.astype(np.float32) * mean - wanted, 0)
    least = (offset.max(1, keepdims=True) / 15).astype(np.float16)
    minima = _rounded(offset, least.astype(np.float32), 15)
    packed = [scales | minima << 4, _pack(upper, 2), step.view(np.uint8), least.view(np.uint8)]
    return np.concatenate(packed, 1)


def _slope(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Factors of 16 codes each, whose products with the weights are the weights' squares, at most
    four times those with the least error."""
    along, square = (codes * weights).sum(2), np.maximum((codes * codes).sum(2), 1e-9)
    told = along * along / square / np.maximum((weights * weights).sum(2), 1e-30)
    slope: np.ndarray = along / square / np.maximum(told, 0.25)
    return slope


def _join_q4_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    out[:, :16] = lower[:, 64:80]
    _put(_Q4_K.join(lower, _rows(upper, 16, 2), _rows(lower, 0, 2)), 4, out, 16)


def _join_q5_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    out[:, :16] = lower[:, 96:112]
    codes = _Q5_K.join(lower, _rows(upper, 16, 2), _rows_of_three_bits(lower))
    _put(codes >> np.uint64(4) & eight(1), 1, out, 16)
    codes &= eight(15)
    _put(codes, 4, out, 48)


def _split_q6_k(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are from -32 to 31. The scales of Q3_K are fitted."""
    low, high = units[:, :128].reshape(-1, 2, 2, 32), units[:, 128:192].reshape(-1, 2, 1, 32)
    rows = np.concatenate([low & 15, low >> 4], 2)  # [units, 2, 4, 32]
    rows |= (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3) << 4
    codes = rows.reshape(-1, 16, 16)
    step = _floats(units[:, 208:])
    if not (np.abs(step) <= _MOST).all():
        return None
    upper, lower, ways = _Q6_K.split(codes)
    weights = (codes.astype(np.float32) - 32) * (units[:, 192:208].view(np.int8) * step)[..., None]
    return _q3_k(upper, weights), np.concatenate([_three_bits(lower), units[:, 192:], ways], 1)


def _q3_k(upper: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Units of Q3_K with these codes [units, 16, 16], whose scales are fitted to the weights."""
    fitted = _slope(upper.astype(np.float32) - 4, weights)
    unit = (np.abs(fitted).max(1, keepdims=True) / 31).astype(np.float16)
    scales = _rounded(fitted, unit.astype(np.float32), 31, -32) + np.uint8(32)
    packed = np.empty((len(upper), 12), np.uint8)
    packed[:, :8] = scales[:, :8] & 15 | scales[:, 8:] << 4
    fourths = (scales >> 4).reshape(-1, 4, 4)
    packed[:, 8:] = fourths[:, 0] | fourths[:, 1] << 2 | fourths[:, 2] << 4 | fourths[:, 3] << 6
    return np.concatenate([_three_bits(upper), packed, unit.view(np.uint8)], 1)


def _join_q6_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    codes = _Q6_K.join(lower, _rows_of_three_bits(upper), _rows_of_three_bits(lower))
    _put(codes >> np.uint64(4) & eight(3), 2, out, 128)
    codes &= eight(15)
    halves = codes.reshape(2, 2, 2, -1).swapaxes(1, 2)  # rows that share bytes, one after the other
    _put(halves, 4, out, 0)
    out[:, 192:] = lower[:, 96:114]


def _rows(units: np.ndarray, begin: int, n_bits: int, shift: int = 0) -> np.ndarray:
    """The 8 rows of 32 codes that `_pack` packed, from byte `begin` of each
    unit, shifted to the left; uint64 [8, 4 * units], a code in each byte."""
    packed = np.ascontiguousarray(units[:, begin : begin + 32 * n_bits].view("V32").T)
    shifts = np.arange(0, 8, n_bits, dtype=np.uint64)[:, np.newaxis]
    rows = packed.view(np.uint64)[:, np.newaxis] >> shifts
    rows &= eight((1 << n_bits) - 1)
    if shift:
        rows <<= np.uint64(shift)
    return rows.reshape(8, -1)


def _rows_of_three_bits(units: np.ndarray) -> np.ndarray:
    """The 8 rows of codes that `_three_bits` packed."""
    rows = _rows(units, 32, 2)
    rows |= _rows(units, 0, 1, 2)
    return rows


def _put(rows: np.ndarray, n_bits: int, out: np.ndarray, begin: int) -> None:
    """Pack 8 rows of codes from byte `begin` of each unit on, and change them."""
    rows = rows.reshape(n_bits, 8 // n_bits, -1)
    rows <<= np.arange(0, 8, n_bits, dtype=np.uint64)[:, np.newaxis]
    packed = np.bitwise_or.reduce(rows, axis=1)
    out[:, begin : begin + 32 * n_bits].view("V32")[:] = packed.view("V32").T


def _three_bits(codes: np.ndarray) -> np.ndarray:
    """256 codes of 3 bits as bytes [units, 96], in the order of Q3_K."""
    return np.concatenate([_pack(codes >> 2, 1), _pack(codes & 3, 2)], 1)


def _pack(codes: np.ndarray, n_bits: int) -> np.ndarray:
    """256 codes of 1, 2 or 4 bits as bytes [units, 32 * n_bits], in the order of K-quants."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, np.newaxis]
    rows = codes.reshape(-1, n_bits, 8 // n_bits, 32) << shifts
    packed: np.ndarray = np.bitwise_or.reduce(rows, axis=2)
    return packed.reshape(-1, 32 * n_bits)


def _scales(head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and minima of 6 bits [units, 8] of Q4_K and Q5_K, whose first 16 bytes these are."""
    first, second, both = head[:, 4:8], head[:, 8:12], head[:, 12:]
    scales = np.concatenate([first & 63, both & 15 | first >> 6 << 4], 1)
    return scales, np.concatenate([second & 63, both >> 4 | second >> 6 << 4], 1)


def _packed(scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """The 12 bytes of scales and minima of 6 bits."""
    firsts = [one[:, :4] | one[:, 4:] >> 4 << 6 for one in (scales, minima)]
    return np.concatenate([*firsts, scales[:, 4:] & 15 | minima[:, 4:] << 4], 1)


def _floats(raw: np.ndarray) -> np.ndarray:
    """Numbers of 16 bits as float32 [units, 1]."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _rounded(values: np.ndarray, unit: np.ndarray, most: int, least: int = 0) -> np.ndarray:
    """Multiples of `unit` [units, 1], within limits; 0 if it is 0."""
    found = np.rint(np.divide(values, unit, out=np.zeros_like(values), where=unit != 0))
    limited: np.ndarray = np.clip(found, least, most)
    return limited.astype(np.int16).astype(np.uint8)


# found one by one, each with the least error of the upper parts of Qwen2.5-Coder-1.5B
_Q8_0_SMALL = Ways("32,16 31,2 28,0 21,0 36,4 35,0 16,0 25,0", 256, 32)
_Q8_0_LEAST = Ways(
    "64,0 52,-6 52,42 44,30 64,-16 64,16 48,64 48,-16 28,54 64,-32 36,58 64,32 40,20 48,32 44,86 "
    "60,-2",
    256,
    64,
)
_Q6_K = Ways("8,4 8,1 8,3 7,0 9,1 9,2 8,2 10,-1", 64, 8)
_Q5_K = Ways("8,0 6,0 6,6 8,-2 8,2 6,8 6,4 4,0 4,12 8,-4 8,4 6,2 10,0 6,-2 4,6 10,-6", 32, 8)
_Q4_K = Ways("4,0 3,0 3,3 4,-1 4,1 3,4 3,2 2,0 2,6 4,-2 4,2 3,1 5,0 3,-1 2,3 5,-3", 16, 4)
_CODES: Mapping[tuple[str, str], tuple[Any, Any]] = {
    ("Q8_0", "Q4_K"): (_split_q8_0, _join_q8_0),
    ("Q8_0", "Q3_K"): (
        partial(_split_q8_0_by, _Q8_0_SMALL, partial(_pack, n_bits=1), _q3_k),
        partial(_join_q8_0_by, _Q8_0_SMALL, 1, _rows_of_three_bits),
    ),
    ("Q8_0", "Q2_K"): (
        partial(_split_q8_0_by, _Q8_0_LEAST, partial(_pack, n_bits=2), _q2_k),
        partial(_join_q8_0_by, _Q8_0_LEAST, 2, partial(_rows, begin=16, n_bits=2)),
    ),
    ("Q6_K", "Q3_K"): (_split_q6_k, _join_q6_k),
    ("Q5_K", "Q2_K"): (partial(_split_by, _Q5_K, _three_bits), _join_q5_k),
    ("Q4_K", "Q2_K"): (partial(_split_by, _Q4_K, partial(_pack, n_bits=2)), _join_q4_k),
}
NESTINGS: Mapping[str, Sequence[Nesting]] = {
    name: [
        Nesting(TYPES[to], kind.nbytes(UNIT), TYPES[to].nbytes(UNIT), n, *_CODES[name, to])
        for to, n in kind.nests
    ]
    for name, kind in TYPES.items()
}
"""Ways in which weights nest, by the name of their type, the largest upper part first."""


def as_stored(kind: TensorType, unit_bytes: int) -> Nesting:
    """Weights whose upper part is all of them."""
    split, join = (lambda units: (units, units[:, :0])), lambda upper, _, out: np.copyto(out, upper)
    return Nesting(kind, unit_bytes, unit_bytes, 0, split, join)
