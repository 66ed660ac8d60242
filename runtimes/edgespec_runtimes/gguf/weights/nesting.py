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
    sixths = np.rint(np.divide(scales * 16, steps, out=np.zeros_like(scales), where=steps > 0))
    sixths = np.minimum(sixths, 63).astype(np.uint8)
    least = (steps * ((128 - _HALF) / 16)).astype(np.float16)
    # the 12 bytes of 6-bit scales and minima, which are equal here
    packed = np.concatenate(
        [
            sixths[:, :4] | sixths[:, 4:] >> 4 << 6,
            sixths[:, :4] | sixths[:, 4:] >> 4 << 6,
            sixths[:, 4:] & 15 | sixths[:, 4:] << 4,
        ],
        1,
    )
    uppers = [step.view(np.uint8), least.view(np.uint8), packed, _nibbles(upper)]
    lowers = [np.ascontiguousarray(blocks[..., :2]).reshape(-1, 16), _nibbles(lower)]
    return np.concatenate(uppers, 1), np.concatenate(lowers, 1)


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
}
"""Kinds of weights that nest, by the name of their type."""


def as_stored(kind: TensorType, unit_bytes: int) -> Nesting:
    """Weights whose upper part is all of them."""

    def split(units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return units, units[:, :0]

    def join(upper: np.ndarray, lower: np.ndarray, out: np.ndarray) -> None:
        out[:] = upper

    return Nesting(kind, unit_bytes, unit_bytes, 0, split, join)
