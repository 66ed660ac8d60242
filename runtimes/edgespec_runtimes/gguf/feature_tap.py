"""Hidden states of committed tokens, which a head reads: how a context hands them out.

Some of llama.cpp's graphs give the inputs of their layers beside logits; of others they are copied
while a pass is computed: llama.cpp names the output of each layer, which is the input of the next
one, and asks about every node. Knows no drafter and no tree.
"""

from __future__ import annotations

import ctypes
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


class FeatureTap:
    """Hands out the features of one text, each once and in the order of its tokens."""

    def __init__(
        self,
        layers: Sequence[int],
        n_layers: int,
        sizes: tuple[int, int],
        inner: OnNode | None,
        is_given: bool,
    ) -> None:
        """`n_layers` is the number of layers of the model; among `layers`, it stands for the input
        of the prediction layers (MTP). `sizes` are the most rows of a pass and a row's values.
        Unless the graph gives them (`is_given`), they are copied in `callback`, which first calls
        `inner`."""
        self.layers = tuple(layers)
        self._n_layers, self._sizes, self._inner = n_layers, sizes, inner
        self.callback: Any = None
        if not is_given:
            self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
            self._copied = np.zeros((len(self.layers), *sizes), np.float32)
        self._index_of = {LAYER_END + b"%d" % (layer - 1): n for n, layer in enumerate(layers)}
        self._inner_waits = False
        self._n_filled, self._n_computed = [0] * len(self.layers), 0
        """Copied rows of each layer, and rows of the latest pass."""
        self._take: Take | None = None
        self._kept: dict[int, np.ndarray] = {}
        """Features of provisional nodes by their keys: [layers, values]."""
        self._nodes: Mapping[int, int] = {}
        """Rows of the latest pass by node key, while none was copied."""

    def begin(self, context: Any) -> None:
        """Call with the new context."""
        self._context = context
        for layer in self.layers if self.callback is None else ():
            if layer == self._n_layers:
                llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
            else:
                _ask_for_inputs(context, layer, True)

    def give(self, take: Take) -> None:
        """Start calling `take` with the features of committed tokens."""
        self._take = take

    def begin_pass(self, n_rows: int) -> None:
        """Call before every llama_decode."""
        self._keep_nodes()
        self._n_filled, self._n_computed = [0] * len(self.layers), n_rows

    def hand_over_rows(self, position: int, rows: range) -> None:
        """Hand out `rows` of the latest pass for tokens from `position` on."""
        if self._take is not None and rows and (layers := self._of_pass()):
            cut = slice(rows.start, rows.stop)
            self._take(position, np.stack([layer[cut] for layer in layers], axis=1))

    def keep_rows(self, rows: Mapping[int, int]) -> None:
        """Store rows of the latest pass by node key."""
        if self._take is not None:
            self._nodes = rows

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
        if nodes and (layers := self._of_pass()):
            rows = ((key, np.array([layer[row] for layer in layers])) for key, row in nodes.items())
            self._kept |= dict(rows)

    def _of_pass(self) -> Sequence[np.ndarray]:
        """The latest pass's features by layer, float32 [rows, values], valid until the next one;
        none if its graph had other rows."""
        if self.callback is not None:
            return [*self._copied] if self._is_filled else []
        return [abi.float_rows(self._address_of(layer), *self._sizes) for layer in self.layers]

    def _address_of(self, layer: int) -> int:
        if layer == self._n_layers:
            pointer = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
            return ctypes.cast(pointer, ctypes.c_void_p).value or 0
        address: int = _inputs_of(self._context, layer)
        return address

    @property
    def _is_filled(self) -> bool:
        return all(n == self._n_computed for n in self._n_filled)

    def _on_node(self, node: int, ask: bool, data: Any) -> bool:
        index = self._index_of.get(abi.name_of(node))
        if ask:
            self._inner_waits = self._inner is not None and self._inner(node, True, data)
            return self._inner_waits or (index is not None and not self._is_filled)
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
