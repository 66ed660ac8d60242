"""Copies features out of llama.cpp's graph while it computes, where it does not give them itself.

llama.cpp names the output of each layer, which is the input of the next one, and asks about every
node.
"""

from __future__ import annotations

import ctypes
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
        self._n_computed = 0
        self._copied = np.zeros((len(self.layers), n_rows, n_values), np.float32)
        self._n_filled = [0] * len(self.layers)

    def begin_pass(self, n_rows: int) -> None:
        super().begin_pass(n_rows)
        self._n_filled = [0] * len(self.layers)
        self._n_computed = n_rows

    def _of_pass(self, n_rows: int) -> Sequence[np.ndarray]:
        return [*self._copied[:, :n_rows]] if self._has(n_rows) else []

    def _has(self, n_rows: int) -> bool:
        """True if all wanted layers of the latest pass had `n_rows` rows; not all graphs do."""
        return all(n == n_rows for n in self._n_filled)

    def _on_node(self, node: int, ask: bool, data: Any) -> bool:
        if ask:
            is_wanted = not self._has(self._n_computed) and abi.name_of(node) in self._index_of
            self._inner_waits = self._inner is not None and self._inner(node, True, data)
            return is_wanted or self._inner_waits
        index = self._index_of.get(abi.name_of(node))
        if index is not None:
            self._copy(index, node)
        return self._inner is None or not self._inner_waits or self._inner(node, False, data)

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
            sizes = ctypes.c_size_t(0), ctypes.c_size_t(into.nbytes)
            ggml.call(None, "ggml_backend_tensor_get", node, into.ctypes.data, *sizes)
            self._n_filled[index] += n_new
