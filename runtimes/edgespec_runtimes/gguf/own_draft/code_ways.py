"""Divides integer codes of weights into upper codes, which alone are close to them, and lower ones.

Knows numbers and no file format.
"""

from __future__ import annotations

import numpy as np

_UNFIT = 1000
"""Stands for the square of an upper code that no lower one makes exact."""


def eight(value: int) -> np.uint64:
    """A number of 64 bits whose bytes are equal."""
    return np.uint64(value * 0x0101010101010101)


class Ways:
    """Ways in which codes are step * upper + base + lower: each 16 of a unit take the one of 16
    with which the upper codes tell most of them; its number is kept with the lower ones."""

    def __init__(self, pairs: str, n_codes: int, n_lower: int) -> None:
        """`pairs` are 16 steps and bases, for types with a minimum of their own. For others, whose
        codes are from -4 to 3, they are 8 steps and shifts, and each is taken in both directions.
        There are `n_codes`, with `n_lower` lower parts; the first way fits them all."""
        ways = [tuple(map(int, pair.split(","))) for pair in pairs.split()]
        has_minima, self._middle = len(ways) == 16, n_codes // 2
        if not has_minima:
            low = (n_codes - n_lower) // 2
            ways = [(step, low + shift - 4 * step) for step, shift in ways]
            ways += [(-step, n_codes - n_lower - base) for step, base in ways]
        steps, bases = np.array(ways, np.int64).T[..., None]
        codes, uppers = np.arange(n_codes)[:, None], np.arange(4 if has_minima else 8)
        lower = codes - (steps * uppers + bases)[:, None]  # [ways, codes, uppers]
        wanted = n_lower // 2 if has_minima else (self._middle - bases - 4 * steps)[..., None]
        far = np.where((lower >= 0) & (lower < n_lower), abs(lower - wanted), 2 * n_codes)
        self._upper = far.argmin(2)
        centred = self._upper - (0 if has_minima else 4)
        squares = np.where(far.min(2) < 2 * n_codes, centred**2, _UNFIT)
        products = centred * (codes.T - self._middle)
        tables = [products, squares, centred][: 2 + has_minima]
        self._tables = np.stack(tables, 1).astype(np.int16)
        self._steps, self._bases = steps[:, 0], bases[:, 0]
        two = np.arange(256)[:, None] >> np.array([0, 0, 4, 4]) & 15
        bases = self._bases * eight(1).astype(np.int64)
        self._lanes = [one[two].view(np.uint64) for one in (bases, self._steps)]

    def split(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Upper and lower parts of codes [units, 16, 16], and the ways' numbers, two in a byte."""
        flat = np.ascontiguousarray(codes.reshape(-1, 16).T).astype(np.intp)
        total = (flat.sum(0) - 16 * self._middle).astype(np.float32)
        best, ways = np.full(len(total), -np.inf, np.float32), np.zeros(len(total), np.intp)
        for number, tables in enumerate(self._tables):
            sums = (table.take(flat, mode="wrap").sum(0, np.int16) for table in tables)
            along, square, *means = (one.astype(np.float32) for one in sums)
            is_fit = square < _UNFIT
            for mean in means:
                along, square = along - mean * total / 16, square - mean * mean / 16
            share = np.where(is_fit, along**2 / np.maximum(square, 0.5), -1)
            is_better = share > best
            best[is_better], ways[is_better] = share[is_better], number
        upper = self._upper[ways, flat]
        lower = flat - self._steps[ways] * upper - self._bases[ways]
        parts = (one.astype(np.uint8).T.reshape(codes.shape) for one in (upper, lower))
        numbers = ways.astype(np.uint8).reshape(-1, 8, 2)
        return *parts, numbers[..., 0] | numbers[..., 1] << 4

    def join(self, lower_parts: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Codes of units, whose bytes add up as numbers of 64 bits do: uint64 [8, 4 * units], like
        `upper`, which it changes, and `lower`. The last bytes of lower parts number the ways."""
        ways = lower_parts[:, -8:].T.astype(np.intp)
        bases, steps = self._lanes
        upper *= steps.take(ways, 0).reshape(8, -1)
        upper += bases.take(ways, 0).reshape(8, -1)
        upper += lower
        return upper
