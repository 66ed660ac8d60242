"""Hidden states of committed tokens, which a head reads: how a context hands them out.

Some of llama.cpp's graphs give the inputs of their layers beside logits; of others they are copied
while a pass is computed (`node_features`). Knows no drafter and no tree.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext
from edgespec_runtimes.kit.kept_features import KeptFeatures

OnNode = Callable[[int, bool, Any], bool]
"""A `cb_eval` of llama.cpp."""


class FeatureTap(KeptFeatures):
    """Hands out the features of each pass of a context."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__(layers)
        self._nodes: Mapping[int, int] = {}
        """Rows of the latest pass by node key, while none was copied."""
        self._n_rows = 0
        """Number of rows of that pass."""

    def begin(self, context: Any) -> None:
        """Call with the new context."""

    def begin_pass(self, n_rows: int) -> None:
        """Call before every llama_decode."""
        self._keep_nodes()

    def hand_over_rows(self, position: int, rows: range, n_rows: int) -> None:
        """Hand out `rows` of the latest pass, which had `n_rows`, for tokens from `position` on."""
        if rows and (layers := self._of_pass(n_rows)):
            cut = slice(rows.start, rows.stop)
            self.hand_over(position, np.stack([layer[cut] for layer in layers], axis=1))

    def keep_rows(self, rows: Mapping[int, int], n_rows: int) -> None:
        """Store rows of the latest pass, which had `n_rows`, by node key."""
        self._nodes, self._n_rows = rows, n_rows

    def commit(self, position: int, path: Sequence[int], keep: Collection[int]) -> None:
        if self._kept or [*self._nodes] != path:
            self._keep_nodes()
            super().commit(position, path, keep)
            return
        nodes, self._nodes = self._nodes, {}
        if layers := self._of_pass(self._n_rows):
            rows = [[layer[row] for layer in layers] for row in nodes.values()]
            self.hand_over(position, np.array(rows))

    def drop(self) -> None:
        self._nodes = {}
        super().drop()

    def _keep_nodes(self) -> None:
        """Copy what the next pass would overwrite."""
        nodes, self._nodes = self._nodes, {}
        if nodes and (layers := self._of_pass(self._n_rows)):
            rows = ((key, np.array([layer[row] for layer in layers])) for key, row in nodes.items())
            self.keep(dict(rows))

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
        self._context: Any = None

    def begin(self, context: Any) -> None:
        self._context = context
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
