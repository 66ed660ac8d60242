"""Copies features out of llama.cpp's graph while it computes, where it does not give them itself.

llama.cpp names the output of each layer, which is the input of the next one, and asks about every
node. Reading a thousand names takes as long as a third of a small model's pass: they are read only
from where they were found in earlier passes of as many rows.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec_runtimes.gguf.feature_tap import FeatureTap, OnNode
from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.bindings import lib

LAYER_END = b"l_out-"
"""Name of the node with a layer's output, without the layer's number."""


class NodeTap(FeatureTap):
    """Collects features in its `callback`, which first calls `inner`."""

    def __init__(
        self, layers: Sequence[int], n_values: int, n_rows: int, inner: OnNode | None
    ) -> None:
        """`n_rows` is the most rows of a pass."""
        super().__init__(layers)
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._index_of = {LAYER_END + b"%d" % (layer - 1): n for n, layer in enumerate(layers)}
        self._inner = inner
        self._inner_waits = False
        self._known: dict[int, list[int]] = {}
        """Places of the wanted nodes among all that were asked about, by the rows of the pass."""
        self._places: list[int] = []
        self._found: list[int] = []
        self._n_asked = self._next = self._n_computed = 0
        self._copied = np.zeros((len(self.layers), n_rows, n_values), np.float32)
        self._n_filled = [0] * len(self.layers)
        library = abi.ggml()
        self._get = library.ggml_backend_tensor_get
        self._get.restype = None
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def begin_pass(self, n_rows: int) -> None:
        super().begin_pass(n_rows)
        self._n_filled = [0] * len(self.layers)
        self._n_computed, self._n_asked, self._found = n_rows, 0, []
        self._places = self._known.get(n_rows, [])
        self._next = self._places[0] if self._places else 0

    def end_pass(self) -> None:
        """Remember where the wanted nodes were."""
        if not self._has(self._n_computed):
            self._known.pop(self._n_computed, None)
        elif self._found != self._places:
            self._known[self._n_computed] = [*map(min, self._found, self._places or self._found)]

    def _of_pass(self, n_rows: int) -> Sequence[np.ndarray]:
        return [*self._copied[:, :n_rows]] if self._has(n_rows) else []

    def _has(self, n_rows: int) -> bool:
        """True if all wanted layers of the latest pass had `n_rows` rows; not all graphs do."""
        return all(n == n_rows for n in self._n_filled)

    def _on_node(self, node: int, ask: bool, data: Any) -> bool:
        if ask:
            self._n_asked = place = self._n_asked + 1
            if place < self._next and self._inner is None:
                return False
            is_wanted = place >= self._next and self._is_wanted(node, place)
            if self._inner is None:
                return is_wanted
            self._inner_waits = self._inner(node, True, data)
            return self._inner_waits or is_wanted
        index = self._index_of.get(abi.name_of(node))
        if index is not None:
            self._copy(index, node)
            if self._has(self._n_computed):
                self._next = sys.maxsize
        return self._inner is None or not self._inner_waits or self._inner(node, False, data)

    def _is_wanted(self, node: int, place: int) -> bool:
        """True for the end of a wanted layer; then names are read from the next known place on."""
        if abi.name_of(node) not in self._index_of:
            return False
        self._found.append(place)
        n_found = len(self._found)
        self._next = self._places[n_found] if n_found < len(self._places) else 0
        return True

    def _copy(self, index: int, node: int) -> None:
        """Append a node's result to the rows of its layer.

        A node of unexpected shape is skipped, and the pass then has no features.
        """
        tensor = abi.GgmlTensor.from_address(node)
        n_values, n_new = int(tensor.ne[0]), int(tensor.ne[1])
        begin = self._n_filled[index]
        into = self._copied[index, begin : begin + n_new]
        is_dense = tensor.type == ggml.F32 and tensor.nb[1] == 4 * n_values
        if is_dense and into.shape == (n_new, n_values) and n_new:
            self._get(node, into.ctypes.data, 0, into.nbytes)
            self._n_filled[index] += n_new
