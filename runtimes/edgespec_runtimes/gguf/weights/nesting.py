"""Kinds of nested weights: the upper bits of codes in a type that ggml computes with, and the lower
bits, which together are the file's bytes again.

Knows blocks of bytes and neither files nor models. A unit is 256 weights of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgespec_runtimes.gguf.file.layout import KINDS as TYPES
from edgespec_runtimes.gguf.file.layout import TensorType

UNIT = 256
"""Weights of a unit: what a row has a whole number of."""
_CHUNK = 512
"""Units that are merged at a time: their parts stay in the processor's cache."""
_LOW, _HIGH = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0xF0F0F0F0F0F0F0F0)
_SIGNS = np.uint64(0x8888888888888888)
"""The upper bit of each code of 4 bits."""
_FOUR = np.uint64(4)
_Q8_0 = np.dtype([("scale", "<u2"), ("codes", "V32")])
_BITS = [np.uint64(n) for n in range(8)]
"""Numbers of bits to shift by."""
_MASKS = np.where(
    np.arange(256)[:, None] >> np.arange(8) & 1, np.uint64(0), np.uint64(0x0808080808080808)
)
"""For each byte of bits, eights where they are 0."""
_HALF = 7.5
"""Mean of the lower 4 bits."""
_MOST = np.finfo(np.float16).max


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
        for begin in range(0, len(out), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            self.join(upper[part], lower[part], out[part])


def _split_q8_0(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 16 * upper + lower, as integers with a sign. Q4_K has a scale and a minimum for 32
    weights, too, of 6 bits; the file's own scale is with the lower part."""
    blocks = units.reshape(-1, 8, 34)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    if not (scales >= 0).all() or scales.max(initial=0) * 16 * _HALF > _MOST:
        return None
    codes = blocks[..., 2:].reshape(-1, 4, 2, 32)
    upper, lower = codes >> 4 ^ 8, codes & 15
    step = (scales.max(1, keepdims=True) * 16 / 63).astype(np.float16)
    steps = step.astype(np.float32)
    multiples = _rounded(scales * 16, steps, 63)
    least = (steps * ((128 - _HALF) / 16)).astype(np.float16)
    packed = _packed(multiples, multiples)
    uppers = [step.view(np.uint8), least.view(np.uint8), packed, _nibbles(upper)]
    lowers = [np.ascontiguousarray(blocks[..., :2]).reshape(-1, 16), _nibbles(lower)]
    return np.concatenate(uppers, 1), np.concatenate(lowers, 1)


def _split_q5_k(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 2 * upper + lower. The scales are the file's, doubled; the minima, too, less half
    a lower bit. Both are with the lower part as they were."""
    head, nibbles = units[:, :16], units[:, 48:].reshape(-1, 4, 32)
    fifths = np.unpackbits(units[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    codes = np.stack([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32) | fifths << 4
    scales, minima = _scales(head)
    step, least = _floats(head[:, :2]), _floats(head[:, 2:4])
    if (
        not (np.isfinite(step) & np.isfinite(least)).all()
        or np.abs(step).max(initial=0) > _MOST / 2
    ):
        return None
    wanted = np.maximum(least * minima - step * scales / 2, 0)
    unit = (wanted.max(1, keepdims=True) / 63).astype(np.float16)
    minima = _rounded(wanted, unit.astype(np.float32), 63)
    upper = (codes >> 1).reshape(-1, 4, 2, 32)
    step = (2 * step).astype(np.float16)
    uppers = [step.view(np.uint8), unit.view(np.uint8), _packed(scales, minima), _nibbles(upper)]
    ones = np.packbits(codes & 1, axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate(uppers, 1), np.concatenate([head, ones], 1)


def _join_q5_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    ones = _lanes(lower, 16)
    fifths = np.zeros_like(ones)
    for row in range(4):
        codes = _lanes(upper, 16 + 32 * row)
        fifths |= (codes >> _BITS[3] & _bytes(1)) << _BITS[2 * row]
        fifths |= (codes >> _BITS[7] & _bytes(1)) << _BITS[2 * row + 1]
        codes &= _bytes(0x77)
        codes <<= _BITS[1]
        codes |= ones >> _BITS[2 * row] & _bytes(1)
        codes |= (ones >> _BITS[2 * row + 1] & _bytes(1)) << _BITS[4]
        _put(codes, out, 48 + 32 * row)
    _put(fifths, out, 16)
    out[:, :16].view("V16")[:] = lower[:, :16].view("V16")


def _split_q6_k(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes, from -32 to 31, are 8 * upper + lower, rounded; where one of 16 would be rounded
    beyond 3, all are rounded down, which a bit tells. The scales of Q3_K are fitted."""
    low, high = units[:, :128].reshape(-1, 2, 2, 32), units[:, 128:192].reshape(-1, 2, 1, 32)
    rows = np.concatenate([low & 15, low >> 4], 2)  # [units, 2, 4, 32]
    rows |= (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3) << 4
    codes = rows.reshape(-1, 16, 16)
    step = _floats(units[:, 208:])
    if not np.isfinite(step).all() or np.abs(step).max(initial=0) > _MOST / 1024:
        return None
    is_floor = codes.max(2) >= 60
    upper = codes + np.where(is_floor, 0, 4).astype(np.uint8)[..., None] >> 3
    weights = (codes.astype(np.float32) - 32) * (units[:, 192:208].view(np.int8) * step)[..., None]
    centred = upper.astype(np.float32) - 4
    power = np.maximum((centred**2).sum(2), 1)
    fitted = (centred * weights).sum(2) / power
    unit = (np.abs(fitted).max(1, keepdims=True) / 31).astype(np.float16)
    scales = _rounded(fitted, unit.astype(np.float32), 31, -32).astype(np.int8) + 32
    scales = scales.astype(np.uint8)
    packed = np.empty((len(units), 12), np.uint8)
    packed[:, :8] = scales[:, :8] & 15 | scales[:, 8:] << 4
    fourths = (scales >> 4).reshape(-1, 4, 4)
    packed[:, 8:] = fourths[:, 0] | fourths[:, 1] << 2 | fourths[:, 2] << 4 | fourths[:, 3] << 6
    floors = np.packbits(is_floor, axis=1, bitorder="little")
    uppers = [_three_bits(upper.reshape(-1, 8, 32)), packed, unit.view(np.uint8)]
    lowers = [_three_bits((codes & 7).reshape(-1, 8, 32)), units[:, 192:], floors]
    return np.concatenate(uppers, 1), np.concatenate(lowers, 1)


def _join_q6_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    # where it was rounded, a lower code of 4 and more belongs to the upper one before
    rounded = _MASKS[lower[:, 114:]].reshape(-1, 8, 2)
    thirds = _lanes(upper, 0), _lanes(lower, 0)
    for half in range(2):
        pairs = _lanes(upper, 32 + 32 * half), _lanes(lower, 32 + 32 * half)
        low, high = [np.zeros_like(pairs[0]) for _ in range(2)], np.zeros_like(pairs[0])
        for part in range(4):
            row = 4 * half + part
            code, rest = (
                pair >> _BITS[2 * part] & _bytes(3) | (third >> _BITS[row] & _bytes(1)) << _BITS[2]
                for pair, third in zip(pairs, thirds, strict=True)
            )
            code <<= _BITS[3]
            code -= rest << _BITS[1] & np.repeat(rounded[:, row], 2)
            code |= rest
            low[part % 2] |= (code & _LOW) << _BITS[4 * (part // 2)]
            high |= (code >> _FOUR & _bytes(3)) << _BITS[2 * part]
        _put(low[0], out, 64 * half)
        _put(low[1], out, 64 * half + 32)
        _put(high, out, 128 + 32 * half)
    out[:, 192:].view("V18")[:] = lower[:, 96:114].view("V18")


def _lanes(units: np.ndarray, begin: int) -> np.ndarray:
    """32 bytes of each unit as numbers of 64 bits, a copy."""
    return units[:, begin : begin + 32].view("V32").copy().view(np.uint64).reshape(-1)


def _put(lanes: np.ndarray, out: np.ndarray, begin: int) -> None:
    """Write what `_lanes` reads."""
    out[:, begin : begin + 32].view("V32")[:] = lanes.view("V32").reshape(-1, 1)


def _bytes(value: int) -> np.uint64:
    """A number of 64 bits whose bytes are equal."""
    return np.uint64(value * 0x0101010101010101)


def _three_bits(codes: np.ndarray) -> np.ndarray:
    """Codes of 3 bits [units, 8, 32] as bytes [units, 96], in the order of Q3_K."""
    third = np.packbits(codes >> 2, axis=1, bitorder="little").reshape(-1, 32)
    pairs = (codes & 3).reshape(-1, 2, 4, 32)
    packed = pairs[:, :, 0] | pairs[:, :, 1] << 2 | pairs[:, :, 2] << 4 | pairs[:, :, 3] << 6
    return np.concatenate([third, packed.reshape(-1, 64)], 1)


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


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits [units, 4, 2, 32] as bytes, in the order of Q4_K."""
    paired: np.ndarray = codes[:, :, 0] | codes[:, :, 1] << 4
    return paired.reshape(-1, 128)


def _join_q8_0(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    high = np.ascontiguousarray(upper[:, 16:]).view(np.uint64)
    low = np.ascontiguousarray(lower[:, 16:]).view(np.uint64)
    blocks = out.view(_Q8_0)  # [units, 8]
    blocks["scale"] = lower[:, :16].view("<u2")
    high ^= _SIGNS
    codes = high & _LOW
    codes <<= _FOUR
    codes |= low & _LOW
    blocks["codes"][:, 0::2] = codes.view("V32")
    high &= _HIGH
    low >>= _FOUR
    low &= _LOW
    high |= low
    blocks["codes"][:, 1::2] = high.view("V32")


NESTINGS: Mapping[str, Nesting] = {
    "Q8_0": Nesting(TYPES["Q4_K"], 272, 144, 144, _split_q8_0, _join_q8_0),
    "Q6_K": Nesting(TYPES["Q3_K"], 210, 110, 116, _split_q6_k, _join_q6_k),
    "Q5_K": Nesting(TYPES["Q4_K"], 176, 144, 48, _split_q5_k, _join_q5_k),
}
"""Kinds of weights that nest, by the name of their type."""


def as_stored(kind: TensorType, unit_bytes: int) -> Nesting:
    """Weights whose upper part is all of them."""

    def split(units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return units, units[:, :0]

    def join(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
        out[:] = upper

    return Nesting(kind, unit_bytes, unit_bytes, 0, split, join)
