"""Shares of tokens that chose each expert of a mixture, over this run and those before it.

Counts only; reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.paging.expert_layers import ExpertLayer

RECALLED_TOKENS = 256
"""Tokens that the shares of earlier runs count for."""


class ExpertShares:
    """Counts of tokens, by layer and expert."""

    def __init__(self, layers: Sequence[ExpertLayer]) -> None:
        self._n_experts = [layer.n_experts for layer in layers]
        self._uses = np.zeros((len(layers), max(self._n_experts)))
        self._n_tokens = np.zeros((len(layers), 1))

    @property
    def values(self) -> np.ndarray:
        """float64 [layers, experts]; 0 where no layer has so many."""
        shares: np.ndarray = self._uses / np.maximum(self._n_tokens, 1.0)
        return shares

    def use(self, layer: int, choices: np.ndarray) -> None:
        """Count what tokens chose: int [n_tokens, n_used]."""
        self._uses[layer] += np.bincount(choices.ravel(), minlength=self._uses.shape[1])
        self._n_tokens[layer] += len(choices)

    def likeliest(self) -> list[tuple[int, int]]:
        """Layers and experts, those that most tokens chose first, without those that none did."""
        shares = self.values
        order = np.argsort(-shares, axis=None, kind="stable")[: np.count_nonzero(shares)]
        return [divmod(int(index), shares.shape[1]) for index in order]

    def to_bytes(self) -> list[bytes]:
        """A byte for each expert, layer by layer: 255 is one that every token chose."""
        rounded = np.minimum(255, np.ceil(255 * self.values)).astype(np.uint8)
        return [row[:n].tobytes() for row, n in zip(rounded, self._n_experts, strict=True)]

    def load(self, kept: Sequence[bytes]) -> bool:
        """Begin with the shares of earlier runs; False if they are not this model's."""
        if [len(layer) for layer in kept] != self._n_experts:
            return False
        for row, layer in zip(self._uses, kept, strict=True):
            shares = np.frombuffer(layer, np.uint8) / 255
            row[: len(layer)] = RECALLED_TOKENS * shares
        self._n_tokens[:] = RECALLED_TOKENS
        return True
