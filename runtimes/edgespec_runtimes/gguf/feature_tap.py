"""Hidden states of committed tokens, which a head reads: how a context hands them out.

Some of llama.cpp's graphs give the inputs of their layers beside logits; of others they are copied
while a pass is computed: llama.cpp names the output of each layer, which is the input of the next
one, and asks about every node. Knows no drafter and no tree.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.ports import Take
from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext

LAYER_END = b"l_out-"
"""Name of the node with a layer's output, without the layer's number."""
OnNode = Callable[[int, bool, Any], bool]
"""A `cb_eval` of llama.cpp."""


class FeatureTap(ABC):
    """Hands out the features of one text, each once and in the order of its tokens."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._take: Take | None = None
        self._kept: dict[int, np.ndarray] = {}
        """Features of provisional nodes by their keys: [layers, values]."""
        self._nodes: Mapping[int, int] = {}
        """Rows of the latest pass by node key, while none was copied."""
        self._n_rows = 0
        """Number of rows of that pass."""

    def begin(self, context: Any) -> None:
        """Call with the new context."""
        self._context = context

    def give(self, take: Take) -> None:
        """Start calling `take` with the features of committed tokens."""
        self._take = take

    def begin_pass(self, n_rows: int) -> None:
        """Call before every llama_decode."""
        self._keep_nodes()

    def hand_over_rows(self, position: int, rows: range, n_rows: int) -> None:
        """Hand out `rows` of the latest pass, which had `n_rows`, for tokens from `position` on."""
        if self._take is not None and rows and (layers := self._of_pass(n_rows)):
            cut = slice(rows.start, rows.stop)
            self._take(position, np.stack([layer[cut] for layer in layers], axis=1))

    def keep_rows(self, rows: Mapping[int, int], n_rows: int) -> None:
        """Store rows of the latest pass, which had `n_rows`, by node key."""
        if self._take is not None:
            self._nodes, self._n_rows = rows, n_rows

    def commit(self, position: int, path: Sequence[int], keep: Collection[int]) -> None:
        """Hand out the features of committed nodes and drop all others except those in `keep`.

        `path` and `keep` are node keys.
        """
        self._keep_nodes()
        rows = [self._kept[key] for key in path if key in self._kept]
        if self._take is not None and rows and len(rows) == len(path):
            self._take(position, np.stack(rows))
        self._kept = {key: row for key, row in self._kept.items() if key in keep}

    def drop(self) -> None:
        """Drop the features of all provisional nodes."""
        self._nodes = {}
        self._kept.clear()

    def _keep_nodes(self) -> None:
        """Copy what the next pass would overwrite."""
        nodes, self._nodes = self._nodes, {}
        if nodes and (layers := self._of_pass(self._n_rows)):
            rows = ((key, np.array([layer[row] for layer in layers])) for key, row in nodes.items())
            self._kept |= dict(rows)

    @abstractmethod
    def _of_pass(self, n_rows: int) -> Sequence[np.ndarray]:
        """The latest pass's features by layer, float32 [n_rows, values], valid until the next pass;
        none if it gave none."""


class OutputTap(FeatureTap):
    """Features that the graph gives itself."""

    def __init__(self, layers: Sequence[int], n_values: int, n_rows: int, n_layers: int) -> None:
        """`n_rows` is the most rows of a pass, `n_layers` the number of layers of the model. Among
        `layers`, it stands for the input of the prediction layers (MTP)."""
        super().__init__(layers)
        self._shape = n_rows, n_values
        self._n_layers = n_layers

    def begin(self, context: Any) -> None:
        super().begin(context)
        for layer in self.layers:
            if layer == self._n_layers:
                llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
            else:
                _ask_for_inputs(context, layer, True)

    def _of_pass(self, n_rows: int) -> Sequence[np.ndarray]:
        addresses = map(self._address_of, self.layers)
        return [abi.float_rows(address, *self._shape)[:n_rows] for address in addresses]

    def _address_of(self, layer: int) -> int:
        if layer == self._n_layers:
            pointer = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
            return ctypes.cast(pointer, ctypes.c_void_p).value or 0
        address: int = _inputs_of(self._context, layer)
        return address


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


def _staged(names: Sequence[str], arguments: Sequence[Any], result: Any = None) -> Any:
    """One of llama.cpp's functions that have no C interface yet, by its name in the library; None
    if it is not there."""
    function = next((f for name in names if (f := getattr(lib._lib, name, None))), None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, *arguments], result
    return function


_ask_for_inputs = _staged(
    (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    (ctypes.c_uint32, ctypes.c_bool),
)
_inputs_of = _staged(
    (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    (ctypes.c_uint32,),
    ctypes.c_void_p,
)


def gives_inputs(name: str) -> bool:
    """True if the graphs of an architecture give the inputs of their layers."""
    traits = architecture(name).traits
    return Trait.SHOWS_INPUTS in traits and _ask_for_inputs is not None
