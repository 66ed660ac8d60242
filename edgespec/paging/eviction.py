"""Chooses the expert to evict: the one whose next use is expected last.

Pure bookkeeping over layers and experts; holds no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

MayEvict = Callable[[int, int], bool]
"""True for a layer and expert that is neither in use nor being read."""


class LeastLikely:
    """Evicts the expert whose next use is expected last.

    The likelihood that a token uses an expert is the mean of two exponential moving averages of the
    share of tokens that did: a short one follows neighbours, which choose alike, and a long one
    tells what the text chooses. A pass over several tokens uses it if one of them does. Layers come
    in turn, so an expert that was just used is needed a whole pass later at the earliest, and those
    of the next layer at once. Without that, a cache smaller than the choices of one pass would
    evict every expert just before its use, as least recently used order does.
    """

    fades = np.array([0.8, 0.99])
    """Decays of the averages per token. One average of 0.95 reads 0.97 to 1.03 times as much on
    two trained mixtures, and up to twice as much where tokens keep their predecessor's experts."""
    unused = 0.02
    """Likelihood of an expert that was not used for very long."""
    max_tokens = 16
    """Most tokens of a pass that count; a longer one is a prompt, and the next pass will be
    shorter."""

    def __init__(self, n_experts: Sequence[int]) -> None:
        shape = (len(n_experts), max(n_experts))
        self._cached = np.zeros(shape, np.bool_)
        self._averages = np.zeros((len(self.fades), *shape))
        self._layer = 0
        self._n_tokens = 1
        self._waits: np.ndarray | None = None
        """Passes until the next use of the candidates since the last choice, -1 elsewhere."""

    def add(self, layer: int, expert: int) -> None:
        """Record that the expert is in memory from now on."""
        self._cached[layer, expert] = True

    def remove(self, layer: int, expert: int) -> None:
        """Record that the expert is no longer in memory."""
        self._cached[layer, expert] = False

    def use(self, layer: int, choices: np.ndarray) -> None:
        """Record the experts that the tokens of a pass chose: int [n_tokens, n_used]."""
        self._layer = layer
        self._waits = None
        n_tokens = len(choices)
        if n_tokens:
            self._n_tokens = min(n_tokens, self.max_tokens)
            uses = np.bincount(choices.ravel(), minlength=self._averages.shape[2])
            decay = self.fades[:, None] ** n_tokens
            self._averages[:, layer] *= decay
            self._averages[:, layer] += (1 - decay) * uses / n_tokens

    def victim(self, may_evict: MayEvict) -> tuple[int, int] | None:
        """The layer and expert to evict, the one that waits longest of those that were not returned
        or refused since the last choice, otherwise of all; None if none may be."""
        for _ in range(2):
            if self._waits is None:
                self._waits = np.where(self._cached, self._passes_until_use(), -1.0).ravel()
            while self._waits[index := int(self._waits.argmax())] >= 0:
                self._waits[index] = -1.0
                layer, expert = divmod(index, self._cached.shape[1])
                if may_evict(layer, expert):
                    return layer, expert
            self._waits = None  # some that were refused may be evicted by now
        return None

    def _passes_until_use(self) -> np.ndarray:
        """Expected passes, and parts of one, until each is used: float64 [layers, experts]."""
        n_layers = len(self._cached)
        until_layer = ((np.arange(n_layers) - self._layer - 1) % n_layers + 1) / n_layers
        in_pass = 1 - (1 - self._averages.mean(axis=0)) ** self._n_tokens
        waits: np.ndarray = until_layer[:, None] + 1 / (in_pass + self.unused) - 1
        return waits
