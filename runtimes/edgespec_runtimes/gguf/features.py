"""Copies hidden states of committed tokens out of llama.cpp's graph while it computes.

llama.cpp names the output of each layer, which is the input of the next one. Knows no drafter and
no tree.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.ports.kept_features import KeptFeatures
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib

LAYER_END = b"l_out-"
"""Name of the node with a layer's output, without the layer's number."""
LAST_END = b"h_nextn"
"""Name of the node with the input of the target's own prediction layers (MTP)."""
F32 = 0

OnNode = Callable[[int, bool, Any], bool]
"""A `cb_eval` of llama.cpp."""


class FeatureTap(KeptFeatures):
    """Collects features in `callback`, the `cb_eval` of a context, which first calls `inner`."""

    def __init__(
        self,
        layers: Sequence[int],
        n_values: int,
        n_rows: int,
        inner: OnNode | None,
        n_layers: int,
    ) -> None:
        """`n_rows` is the most rows of a pass, `n_layers` the number of layers of the model.

        Among `layers`, `n_layers` stands for the input of the prediction layers (MTP).
        """
        super().__init__(layers)
        self.wants_end = n_layers in self.layers
        """True if llama.cpp must compute all rows of the last layer."""
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        names = [
            LAST_END if layer == n_layers else LAYER_END + b"%d" % (layer - 1) for layer in layers
        ]
        self._index_of = {name: n for n, name in enumerate(names)}
        self._inner = inner
        self._inner_waits = False
        self._rows = np.zeros((len(self.layers), n_rows, n_values), np.float32)
        self._n_filled = [0] * len(self.layers)
        library = abi.ggml()
        self._get = library.ggml_backend_tensor_get
        self._get.restype = None
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def begin_pass(self) -> None:
        """Call before every llama_decode."""
        self._n_filled = [0] * len(self.layers)

    def hand_over_rows(self, position: int, rows: range, n_rows: int) -> None:
        """Hand out `rows` of the latest pass, which had `n_rows`, for tokens from `position` on."""
        if self._has(n_rows):
            found = self._rows[:, rows.start : rows.stop]
            self.hand_over(position, found.transpose(1, 0, 2))

    def keep_rows(self, rows: Mapping[int, int], n_rows: int) -> None:
        """Store rows of the latest pass, which had `n_rows`, by node key."""
        if self._has(n_rows):
            self.keep({key: self._rows[:, row] for key, row in rows.items()})

    def _has(self, n_rows: int) -> bool:
        """True if all wanted layers of the latest pass had `n_rows` rows; not all graphs do."""
        return all(n == n_rows for n in self._n_filled)

    def _on_node(self, node: int, ask: bool, data: Any) -> bool:
        index = self._index_of.get(abi.name_of(node))
        if ask:
            self._inner_waits = self._inner is not None and self._inner(node, True, data)
            return self._inner_waits or index is not None
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
        into = self._rows[index, begin : begin + n_new]
        is_dense = tensor.type == F32 and tensor.nb[1] == 4 * n_values
        if is_dense and into.shape == (n_new, n_values) and n_new:
            self._get(node, into.ctypes.data, 0, into.nbytes)
            self._n_filled[index] += n_new
