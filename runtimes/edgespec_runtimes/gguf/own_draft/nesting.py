"""Kinds of nested weights: the upper bits of codes in a type that ggml computes with, and the lower
bits, which together are the file's bytes again.

Knows blocks of bytes and neither files nor models. A unit is 256 weights of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from edgespec_runtimes.gguf.file.layout import KINDS as TYPES
from edgespec_runtimes.gguf.file.layout import TensorType

UNIT = 256
"""Weights of a unit: what a row has a whole number of."""
_CHUNK_BYTES = 128 << 10
"""Bytes of the arrays with which units are merged: the allocator maps larger ones anew each time,
which took four fifths of the time."""
MERGING_BYTES = 8 * _CHUNK_BYTES
"""Memory of these arrays in a thread."""
_LOW, _HIGH = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0xF0F0F0F0F0F0F0F0)
_Q8_0 = np.dtype([("scale", "<u2"), ("codes", "V32")])
_BITS = [np.uint64(n) for n in range(8)]
"""Numbers of bits to shift by."""
_PAIRS_OF_BITS = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.uint64(0), ~np.uint64(0))
_MASKS = np.repeat(_PAIRS_OF_BITS, 2, 1).reshape(256, 4, 4).swapaxes(0, 1).copy()
"""For each pair of bits in a byte, and each byte, 16 bytes of ones for each of them that is 0."""
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
        n_most = _CHUNK_BYTES // 32  # bytes of a unit's lanes
        for begin in range(0, len(out), n_most):
            part = slice(begin, begin + n_most)
            self.join(upper[part], lower[part], out[part])


def _split_q8_0(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 16 * upper + lower, as integers with a sign. Q4_K has a scale and a minimum for 32
    weights, too, of 6 bits; the file's own scale is with the lower part."""
    blocks = units.reshape(-1, 8, 34)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    if not ((scales >= 0) & (scales <= _MOST)).all():
        return None
    codes = blocks[..., 2:].reshape(-1, 4, 2, 32)
    upper, lower = codes >> 4 ^ 8, codes & 15
    step = (scales.max(1, keepdims=True) * 16 / 63).astype(np.float16)
    steps = step.astype(np.float32)
    multiples = _rounded(scales * 16, steps, 63)
    least = (steps * ((128 - 7.5) / 16)).astype(np.float16)  # less the mean of the lower 4 bits
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
    if not (np.abs([step, least]) <= _MOST).all():  # false for what is no number
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


def _split_q4_k(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 4 * upper + lower. Scales and minima are with the lower part as they were; those of
    Q2_K, for 16 weights, are fitted."""
    head, nibbles = units[:, :16], units[:, 16:].reshape(-1, 4, 32)
    codes = np.stack([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32)
    step, least = _floats(head[:, :2]), _floats(head[:, 2:4])
    if not (np.abs([step, least]) <= _MOST).all():
        return None
    scales, minima = _scales(head)
    weights = (codes * (step * scales)[..., None] - (least * minima)[..., None]).reshape(-1, 16, 16)
    upper = (codes >> 2).reshape(-1, 16, 16)
    lower = _pairs((codes & 3).reshape(-1, 2, 4, 32))
    return _q2_k(upper, weights), np.concatenate([head, lower], 1)


def _q2_k(upper: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Units of Q2_K with these codes, whose scales and minima are fitted to the weights [units, 16,
    16], of some units for them the best."""
    codes = upper.reshape(weights.shape).astype(np.float32)
    mean, wanted = codes.mean(2), weights.mean(2)
    spread = codes - mean[..., None]
    slope = (spread * (weights - wanted[..., None])).sum(2) / np.maximum((spread**2).sum(2), 1e-9)
    slope = np.maximum(slope, 0)
    best = np.full((len(upper), 20), 255, np.uint8), np.full(len(upper), np.inf)
    for share in (1.0, 0.93, 0.86, 0.78):
        step = (share * slope.max(1, keepdims=True) / 15).astype(np.float16)
        scales = _rounded(slope, step.astype(np.float32), 15)
        scaled = scales * step.astype(np.float32)
        offset = np.maximum(scaled * mean - wanted, 0)
        least = (offset.max(1, keepdims=True) / 15).astype(np.float16)
        minima = _rounded(offset, least.astype(np.float32), 15)
        near = scaled[..., None] * codes - (minima * least.astype(np.float32))[..., None]
        error = ((near - weights) ** 2).sum((1, 2))
        found = np.concatenate([scales | minima << 4, step.view(np.uint8), least.view(np.uint8)], 1)
        is_better = error < best[1]
        best = np.where(is_better[:, None], found, best[0]), np.where(is_better, error, best[1])
    pairs = _pairs(upper.reshape(-1, 2, 4, 32))
    return np.concatenate([best[0][:, :16], pairs, best[0][:, 16:]], 1)


def _join_q4_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    out[:, :16].view("V16")[:] = lower[:, :16].view("V16")
    for half in range(2):
        high, low = (_lanes(units, 16 + 32 * half) for units in (upper, lower))
        for part in (0, 2):
            first, second = _BITS[2 * part], _BITS[2 * part + 2]
            codes = (high >> first & _bytes(3)) << _BITS[2] | low >> first & _bytes(3)
            codes |= (high >> second & _bytes(3)) << _BITS[6] | (
                low >> second & _bytes(3)
            ) << _BITS[4]
            _put(codes, out, 16 + 64 * half + 16 * part)


def _split_q6_k(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes, from -32 to 31, are 8 * upper + lower, rounded; where one of 16 would be rounded
    beyond 3, all are rounded down, which a bit tells. The scales of Q3_K are fitted."""
    low, high = units[:, :128].reshape(-1, 2, 2, 32), units[:, 128:192].reshape(-1, 2, 1, 32)
    rows = np.concatenate([low & 15, low >> 4], 2)  # [units, 2, 4, 32]
    rows |= (high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3) << 4
    codes = rows.reshape(-1, 16, 16)
    step = _floats(units[:, 208:])
    if not (np.abs(step) <= _MOST).all():
        return None
    upper, floors = _rounded_codes(codes, 3)
    weights = (codes.astype(np.float32) - 32) * (units[:, 192:208].view(np.int8) * step)[..., None]
    lowers = [_three_bits((codes & 7).reshape(-1, 8, 32)), units[:, 192:], floors]
    return _q3_k(upper, weights), np.concatenate(lowers, 1)


def _rounded_codes(codes: np.ndarray, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Upper 3 bits of codes [units, 16, 16] with `n_bits` more, and a bit for each 16 that are
    rounded down, because one of them would be rounded beyond 7."""
    half = 1 << n_bits - 1
    is_floor = codes.max(2) >= 16 * half - half
    upper = codes + np.where(is_floor, 0, half).astype(np.uint8)[..., None] >> n_bits
    return upper, np.packbits(is_floor, axis=1, bitorder="little")


def _q3_k(upper: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Units of Q3_K with these codes [units, 16, 16], whose scales are fitted to the weights."""
    centred = upper.astype(np.float32) - 4
    power = np.maximum((centred**2).sum(2), 1)
    fitted = (centred * weights).sum(2) / power
    unit = (np.abs(fitted).max(1, keepdims=True) / 31).astype(np.float16)
    scales = _rounded(fitted, unit.astype(np.float32), 31, -32).astype(np.int8) + 32
    scales = scales.astype(np.uint8)
    packed = np.empty((len(upper), 12), np.uint8)
    packed[:, :8] = scales[:, :8] & 15 | scales[:, 8:] << 4
    fourths = (scales >> 4).reshape(-1, 4, 4)
    packed[:, 8:] = fourths[:, 0] | fourths[:, 1] << 2 | fourths[:, 2] << 4 | fourths[:, 3] << 6
    uppers = [_three_bits(upper.reshape(-1, 8, 32)), packed, unit.view(np.uint8)]
    return np.concatenate(uppers, 1)


def _join_q6_k(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    # where it was rounded, a lower code of 4 and more belongs to the upper one before
    rounded = _masks(lower[:, 114:], 8)
    rows = zip(_rows_of_three_bits(upper), _rows_of_three_bits(lower), rounded, strict=True)
    for half in range(2):
        low, high = np.zeros((2, 4 * len(out)), np.uint64), np.zeros(4 * len(out), np.uint64)
        for part, (first, rest, mask) in enumerate(islice(rows, 4)):
            code = (first << _BITS[3]) - (rest << _BITS[1] & mask) | rest
            low[part % 2] |= (code & _LOW) << _BITS[4 * (part // 2)]
            high |= (code >> _BITS[4] & _bytes(3)) << _BITS[2 * part]
        _put(low[0], out, 64 * half)
        _put(low[1], out, 64 * half + 32)
        _put(high, out, 128 + 32 * half)
    out[:, 192:].view("V18")[:] = lower[:, 96:114].view("V18")


def _split_q8_0_small(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 32 * upper + lower, rounded as those of Q6_K, which are turned around where the
    largest of 16 is positive. The file's scales are with the lower part."""
    blocks = units.reshape(-1, 8, 34)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    if not (np.abs(scales) <= _MOST).all():
        return None
    weights = (blocks[..., 2:].view(np.int8) * scales).reshape(-1, 16, 16)
    codes = (blocks[..., 2:] ^ 128).reshape(-1, 16, 16)
    is_kept = codes.max(2) <= 255 - codes.min(2)
    codes ^= np.where(is_kept, 0, 255).astype(np.uint8)[..., None]
    upper, floors = _rounded_codes(codes, 5)
    kept, codes = np.packbits(is_kept, axis=1, bitorder="little"), codes.reshape(-1, 8, 32)
    fifths = np.packbits(codes >> 4 & 1, axis=1, bitorder="little").reshape(-1, 32)
    nibbles = _nibbles((codes & 15).reshape(-1, 4, 2, 32))
    heads = np.ascontiguousarray(blocks[..., :2]).reshape(-1, 16)
    return _q3_k(upper, weights), np.concatenate([heads, nibbles, fifths, floors, kept], 1)


def _join_q8_0_small(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    blocks = out.view(_Q8_0)
    blocks["scale"] = lower[:, :16].view("<u2")
    fifths, rounded = _lanes(lower, 144), _masks(lower[:, 176:178], 32)
    rows = zip(_rows_of_three_bits(upper), rounded, _masks(lower[:, 178:], 255), strict=True)
    for row, (first, mask, turned) in enumerate(rows):
        if row % 2 == 0:
            nibbles = _lanes(lower, 16 + 16 * row)
        rest = nibbles >> _BITS[4 * (row % 2)] & _LOW
        rest |= (fifths >> _BITS[row] & _bytes(1)) << _BITS[4]
        code = ((first << _BITS[5]) - (rest << _BITS[1] & mask) | rest) ^ _bytes(128) ^ turned
        blocks["codes"][:, row] = code.view("V32")


def _split_q8_0_least(units: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Codes are 64 * upper + lower. The scales of Q2_K are fitted, the file's are with the lower
    part."""
    blocks = units.reshape(-1, 8, 34)
    heads = np.ascontiguousarray(blocks[..., :2])
    scales, codes = heads.view(np.float16).astype(np.float32), blocks[..., 2:] ^ 128
    if not (np.abs(scales) <= _MOST).all():
        return None
    weights = (blocks[..., 2:].view(np.int8) * scales).reshape(-1, 16, 16)
    lower = _nibbles(codes.reshape(-1, 4, 2, 32) & 15), _pairs(codes.reshape(-1, 2, 4, 32) >> 4 & 3)
    return _q2_k(codes >> 6, weights), np.concatenate([heads.reshape(-1, 16), *lower], 1)


def _join_q8_0_least(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
    blocks = out.view(_Q8_0)
    blocks["scale"] = lower[:, :16].view("<u2")
    for row in range(8):
        at, two = 32 * (row // 4), _BITS[row % 4 * 2]
        code = (_lanes(upper, 16 + at) >> two & _bytes(3)) << _BITS[6]
        code |= (_lanes(lower, 144 + at) >> two & _bytes(3)) << _BITS[4]
        code |= _lanes(lower, 16 + 32 * (row // 2)) >> _BITS[row % 2 * 4] & _LOW
        blocks["codes"][:, row] = (code ^ _bytes(128)).view("V32")


def _rows_of_three_bits(units: np.ndarray) -> Iterator[np.ndarray]:
    """The 8 rows of codes that `_three_bits` packed, in lanes."""
    thirds = _lanes(units, 0)
    for row in range(8):
        if row % 4 == 0:
            pairs = _lanes(units, 32 + 8 * row)
        found = pairs >> _BITS[row % 4 * 2] & _bytes(3)
        yield found | (thirds >> _BITS[row] & _bytes(1)) << _BITS[2]


def _masks(floors: np.ndarray, bit: int) -> Iterator[np.ndarray]:
    """For each of 8 rows, lanes with `bit` where codes were rounded, not rounded down."""
    masks = _MASKS & _bytes(bit)
    for row in range(8):
        yield masks[row % 4].take(floors[:, row // 4], 0).reshape(-1)


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
    return np.concatenate([third, _pairs((codes & 3).reshape(-1, 2, 4, 32))], 1)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """Codes of 2 bits [units, 2, 4, 32] as bytes [units, 64], in the order of Q2_K."""
    packed = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
    found: np.ndarray = packed.reshape(-1, 64)
    return found


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
    blocks = out.view(_Q8_0)  # [units, 8]
    blocks["scale"] = lower[:, :16].view("<u2")
    for row in range(4):
        high, low = _lanes(upper, 16 + 32 * row) ^ _bytes(0x88), _lanes(lower, 16 + 32 * row)
        blocks["codes"][:, 2 * row] = ((high & _LOW) << _BITS[4] | low & _LOW).view("V32")
        blocks["codes"][:, 2 * row + 1] = (high & _HIGH | low >> _BITS[4] & _LOW).view("V32")


_CODES = {
    ("Q8_0", "Q4_K"): (_split_q8_0, _join_q8_0),
    ("Q8_0", "Q3_K"): (_split_q8_0_small, _join_q8_0_small),
    ("Q8_0", "Q2_K"): (_split_q8_0_least, _join_q8_0_least),
    ("Q6_K", "Q3_K"): (_split_q6_k, _join_q6_k),
    ("Q5_K", "Q4_K"): (_split_q5_k, _join_q5_k),
    ("Q4_K", "Q2_K"): (_split_q4_k, _join_q4_k),
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
