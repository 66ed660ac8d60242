"""Brings the experts that a layer chose into memory before llama.cpp computes with them.

`segments` found the nodes that hold the choices; `edgespec.paging.expert_cache` reads, keeps and
evicts experts.

llama.cpp stops after the node that holds a layer's choice. The chosen experts are put in their
places in an address range of the whole stacked matrix, to which its tensor points until the layer
is computed, and to the file mapping otherwise: a missed choice is slow and never wrong.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.concurrency.owning import close_all
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.paging.expert_layers import ExpertLayer, ExpertMatrix, chosen_experts
from edgespec.paging.reader import BLOCK_BYTES
from edgespec_runtimes.gguf.kernels.expert_products import ExpertProducts
from edgespec_runtimes.gguf.kernels.node_graph import SkippedNode
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.weights.segments import ExpertChoice, TracedWeight, extent_of

if TYPE_CHECKING:
    from edgespec.paging.expert_cache import ExpertCache

UNNAMED = ("node_", "leaf_", " ")
"""Prefixes of the names that ggml gives to unnamed nodes, whose numbers change with the batch."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The stacked matrices among whose experts one node chooses, in order of use."""

    choice: ExpertChoice
    weights: tuple[TracedWeight, ...]
    n_experts: int

    @property
    def layer(self) -> ExpertLayer:
        matrices = (
            ExpertMatrix(extent_of(weight.entry), self.n_experts) for weight in self.weights
        )
        name = ".".join(self.weights[0].entry.name.split(".")[:2])
        return ExpertLayer(name, tuple(matrices), self.choice.n_used)


def mixtures(weights: Sequence[TracedWeight]) -> list[Mixture]:
    """The mixtures whose experts can be read one by one, in order of use.

    Each expert must be large enough for only its neighbours to share a block with it; only Linux
    gives memory back at once. Other experts are paged like any matrix.
    """
    if sys.platform != "linux":
        return []
    by_choice: dict[ExpertChoice, list[TracedWeight]] = {}
    for weight in weights:
        choice = weight.choice
        if choice is not None and choice.name and not choice.name.startswith(UNNAMED):
            by_choice.setdefault(choice, []).append(weight)
    found = []
    for choice, stacked in by_choice.items():
        shapes = (weight.entry.shape for weight in stacked)
        sizes = {shape[2] if len(shape) > 2 else 1 for shape in shapes}
        n_experts = min(sizes)
        least_bytes = min(weight.entry.nbytes for weight in stacked) // n_experts
        if len(sizes) == 1 and n_experts > choice.n_used and least_bytes >= BLOCK_BYTES:
            found.append(Mixture(choice, tuple(stacked), n_experts))
    if found:
        from edgespec.paging import expert_cache  # noqa: F401 - counted before the plan is made
    return found


def expert_sizes(found: Sequence[Mixture]) -> ExpertSizes | None:
    """The sizes of the experts for planning; None without mixtures."""
    if not found:
        return None
    layers = [mixture.layer for mixture in found]
    return ExpertSizes(
        n_layers=len(layers),
        n_experts=max(layer.n_experts for layer in layers),
        n_used=max(layer.n_used for layer in layers),
        nbytes=sum(layer.nbytes for layer in layers),
        room_bytes=sum(layer.n_experts * layer.room_bytes for layer in layers),
        layer_bytes=max(layer.n_experts * layer.room_bytes for layer in layers),
        least_bytes=max(layer.n_used * layer.room_bytes for layer in layers),
    )


class PagedExperts:
    """Answers llama.cpp's callbacks for the nodes that choose experts and those that use them."""

    def __init__(
        self, found: Sequence[Mixture], cache: ExpertCache, stop: AbortFlag, n_threads: int
    ) -> None:
        self.cache = cache
        self._products = ExpertProducts(n_threads)
        self.ops = frozenset(mixture.choice.op for mixture in found)
        self._stop = stop
        self._layer_of = {m.choice.name.encode(): i for i, m in enumerate(found)}
        self._weights = [
            [
                (weight, cache.address(i, j), matrix.stride_bytes)
                for j, (weight, matrix) in enumerate(
                    zip(mixture.weights, cache.layers[i].matrices, strict=True)
                )
            ]
            for i, mixture in enumerate(found)
        ]
        self._mapped = {
            weight.address: (weight.pointer.value, weight.stride.value)
            for mixture in found
            for weight in mixture.weights
        }
        self._place_of = {
            weight.address: (i, j)
            for i, m in enumerate(found)
            for j, weight in enumerate(m.weights)
        }
        self._last = {m.weights[-1].address: i for i, m in enumerate(found)}
        self._before_last = {m.weights[-2].address: i for i, m in enumerate(found) if m.weights[1:]}
        self._pointed: set[int] = set()
        self._computed: set[int] = set()
        """Layers whose last product llama.cpp computes before it stops again."""
        self._in_rounds: dict[int, np.ndarray] = {}
        """Layer -> its choices, of more experts than fit together."""
        self._skipped = SkippedNode()

    @property
    def backend(self) -> int:
        """The address of the CPU backend that multiplies in rounds."""
        return self._products.backend

    def is_choice(self, node: int) -> bool:
        """True if llama.cpp must stop after this node, whose op is one of `ops`."""
        return abi.name_of(node) in self._layer_of

    def use(self, weight: int, node: int) -> bool:
        """Prepare for a node that reads this tensor. Returns True if llama.cpp must stop after it:
        its layer's last matrix may not have arrived, or its experts come in rounds.

        Raises WeightReadError.
        """
        if self._in_rounds and self._place_of.get(weight, (-1, 0))[0] in self._in_rounds:
            self._skipped.skip(node)
            return True
        layer = self._last.get(weight)
        if layer in self._pointed:
            self._computed.add(layer)
            if not self.cache.complete(layer):
                self._stop.is_set = True
        return self._before_last.get(weight) in self._pointed

    def bring(self, node: int) -> None:
        """Bring the experts that this node chose to their places, or stop the pass.

        Raises WeightReadError.
        """
        layer = self._layer_of[abi.name_of(node)]
        for computed in self._computed:
            self._give_back(computed)
        self._computed.clear()
        # also if the pass is given up: the values then mean nothing, but llama.cpp may read them
        self._pointed.add(layer)
        for weight, address, stride_bytes in self._weights[layer]:
            weight.pointer.value, weight.stride.value = address, stride_bytes
        choices = abi.values_of(node, np.int32)[0, 0]
        fits = self.cache.holds(layer, choices.size) or self.cache.holds(
            layer, len(chosen_experts(choices))
        )
        if not fits:
            self._in_rounds[layer] = choices.copy()
            self.cache.choose(layer, choices)
        elif not self.cache.acquire(layer, choices):
            self._stop.is_set = True

    def multiply(self, node: int) -> bool:
        """Compute this node's product round by round if it was skipped; True if it was.

        Raises WeightReadError.
        """
        if not self._skipped.restore():
            return False
        weight = ctypes.c_uint64.from_address(node + abi.SRC_OFFSET).value
        layer, matrix = self._place_of[weight]
        choices = self._in_rounds[layer]
        n_left = len(chosen_experts(choices))
        for experts in self.cache.groups(layer, matrix, choices):
            self._products.compute(node, choices, experts)
            n_left -= len(experts)
        if n_left:
            self._stop.is_set = True
        if weight in self._last:
            del self._in_rounds[layer]
            self._computed.add(layer)
        return True

    def close(self) -> None:
        close_all(self.cache.close, self._products.close)

    def end_pass(self) -> None:
        self._skipped.restore()
        self._in_rounds.clear()
        for layer in list(self._pointed):
            self._give_back(layer)
        self._computed.clear()

    def _give_back(self, layer: int) -> None:
        for weight, _, _ in self._weights[layer]:
            weight.pointer.value, weight.stride.value = self._mapped[weight.address]
        self._pointed.discard(layer)
        self.cache.release(layer)
