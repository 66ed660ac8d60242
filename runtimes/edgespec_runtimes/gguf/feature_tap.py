"""Hidden states of committed tokens, which a head reads: how a context hands them out.

llama.cpp's graph gives the inputs of its layers beside logits. Knows no drafter and no tree.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.ports import Take
from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext


class FeatureTap:
    """Hands out the features of one text, each once and in the order of its tokens."""

    def __init__(
        self, context: Any, layers: Sequence[int], n_layers: int, sizes: tuple[int, int]
    ) -> None:
        """`n_layers` is the number of layers of the model; among `layers`, it stands for the input
        of the prediction layers (MTP). `sizes` are the most rows of a pass and a row's values."""
        self.layers = tuple(layers)
        self._context, self._n_layers, self._sizes = context, n_layers, sizes
        self._take: Take | None = None
        self._kept: dict[int, np.ndarray] = {}
        """Features of provisional nodes by their keys: [layers, values]."""
        self._nodes: Mapping[int, int] = {}
        """Rows of the latest pass by node key, while none was copied."""
        for layer in self.layers:
            if layer == n_layers:
                llama_cpp_ext.llama_set_embeddings_nextn(context, True, False)
            else:
                _ask_for_inputs(context, layer, True)

    def give(self, take: Take) -> None:
        """Start calling `take` with the features of committed tokens."""
        self._take = take

    def begin_pass(self) -> None:
        """Copy what the next pass would overwrite; call before every llama_decode."""
        nodes, self._nodes = self._nodes, {}
        if nodes:
            layers = self._of_pass()
            rows = ((key, np.array([layer[row] for layer in layers])) for key, row in nodes.items())
            self._kept |= dict(rows)

    def hand_over_rows(self, position: int, rows: range) -> None:
        """Hand out `rows` of the latest pass for tokens from `position` on."""
        if self._take is not None and rows:
            cut = slice(rows.start, rows.stop)
            self._take(position, np.stack([layer[cut] for layer in self._of_pass()], axis=1))

    def keep_rows(self, rows: Mapping[int, int]) -> None:
        """Store rows of the latest pass by node key."""
        if self._take is not None:
            self._nodes = rows

    def commit(self, position: int, path: Sequence[int], keep: Collection[int]) -> None:
        """Hand out the features of committed nodes and drop all others except those in `keep`.

        `path` and `keep` are node keys.
        """
        self.begin_pass()
        rows = [self._kept[key] for key in path if key in self._kept]
        if self._take is not None and rows and len(rows) == len(path):
            self._take(position, np.stack(rows))
        self._kept = {key: row for key, row in self._kept.items() if key in keep}

    def drop(self) -> None:
        """Drop the features of all provisional nodes."""
        self._nodes = {}
        self._kept.clear()

    def _of_pass(self) -> Sequence[np.ndarray]:
        """The latest pass's features by layer, float32 [rows, values], valid until the next one."""
        return [abi.float_rows(self._address_of(layer), *self._sizes) for layer in self.layers]

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
