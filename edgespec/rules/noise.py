"""Noise of a text's draws: a pure function of the seed, the position and the token.

With temperature T and Gumbel noise G, the token drawn from softmax(logits / T) is the one with the
highest logit + T * G, so sampling is greedy decoding of perturbed logits (the Gumbel-max trick),
and the noise of later positions is known before they are reached.

The noise is a hash in counter mode: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) with a stream
for each position of each seed, and a place in the stream for each token.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
Numbers = NDArray[np.float64]

CHUNK = 1 << 13
"""Hashes that are computed at once, so that they fit into the processor's cache."""
MAX_LEVEL = 40.0
"""Noise above every number of `Noise.gumbel`, which has 52 random bits."""
_MASK = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LARGEST, _LAST_BITS = (1 << 52) - 1, (1 << 33) - 1


class Noise:
    """The noise of one seed."""

    def __init__(self, seed: int) -> None:
        self._key = 0
        for word in range(max(1, -(-seed.bit_length() // 64))):
            self._key = _mixed(self._key + _GOLDEN + (seed >> 64 * word))

    def gumbel(self, position: int, tokens: Tokens) -> Numbers:
        """Independent standard Gumbel numbers of `tokens` for the text's token `position`.

        The same on every machine, up to the rounding of logarithms.
        """
        z = self._hashes(position, tokens)
        z ^= z >> np.uint64(31)
        noise: Numbers = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        # -log(-log(1 - u)): the highest come from u near 0, where floating point is dense
        np.negative(np.log1p(np.negative(noise, out=noise), out=noise), out=noise)
        np.negative(np.log(noise, out=noise), out=noise)
        return noise

    def above(
        self, level: float, position: int, n_tokens: int, tokens: Tokens | None = None
    ) -> Tokens:
        """Places among `n_tokens` of `tokens`, by default of all, whose noise is at least `level`,
        ascending; rarely one more.

        Costs no logarithms, and memory for one chunk of the tokens.
        """
        level = min(max(level, -MAX_LEVEL), MAX_LEVEL)
        bound = -np.expm1(-np.exp(-level)) * (1 + 1e-9)
        # uniform numbers up to `bound` are those of hashes up to this; the last step of a hash does
        # not change its upper half, and which of 2**31 tokens it decides may well be compared
        highest = np.uint64(min(math.floor(bound * 2.0**52), _LARGEST) << 12 | _LAST_BITS)
        found = []
        for begin in range(0, n_tokens, CHUNK):
            places = np.arange(begin, min(begin + CHUNK, n_tokens))
            hashes = self._hashes(position, places if tokens is None else tokens[places])
            found.append(places[hashes <= highest])
        return np.concatenate(found)

    def _hashes(self, position: int, tokens: Tokens) -> NDArray[np.uint64]:
        """`_mixed` of places in the position's stream, but for its last step."""
        z = tokens.astype(np.uint64)
        z += np.uint64(1)
        z *= np.uint64(_GOLDEN)
        z += np.uint64(_mixed(self._key + (position + 1) * _GOLDEN))
        for n_bits, factor in ((30, _FIRST), (27, _SECOND)):
            z ^= z >> np.uint64(n_bits)
            z *= np.uint64(factor)
        return z


def _mixed(key: int) -> int:
    """A hash of a number below 2**64: SplitMix64's last steps."""
    key &= _MASK
    key = (key ^ key >> 30) * _FIRST & _MASK
    key = (key ^ key >> 27) * _SECOND & _MASK
    return key ^ key >> 31
