"""Checks that a session with exchanged constants computes what onnxruntime computes with its own.

Operator by operator, bit by bit: a kernel may keep what depends on its weights where no file is
mapped, and another version may pack otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgespec.errors import EdgespecError
from edgespec_runtimes.onnx.graph.functions import (
    model_of,
    nested,
    replace_content,
    whole_numbers,
)
from edgespec_runtimes.onnx.ort.devices import CPU
from edgespec_runtimes.onnx.ort.sessions import OrtSession, StopFlag
from edgespec_runtimes.onnx.weights.exchange import (
    Constant,
    ExchangedSession,
    Layout,
    SavedPiece,
    constants_of,
    save,
)

ROWS = (1, 2, 5, 17, 64)
"""Numbers of rows for which an operator is tried: kernels differ for few and many."""
_PRODUCT = "MatMulNBits"
_NORMS = (
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
_KNOWN = (_PRODUCT, "Add", "Mul", *_NORMS)
"""Operators that are tried, whose other inputs are activations."""
_PLAIN = ("location", "offset", "length")


class NotExchangeableError(EdgespecError):
    """The constants of a piece cannot be exchanged."""


def exchanged_layout(
    first: bytes, second: bytes, folder: Path, n_threads: int, scratch: Path
) -> Layout:
    """The constants to exchange between two pieces of one graph, whose weights are external data.

    Those that no result depends on are left out. Raises EdgespecError if they cannot be exchanged.
    """
    one, other = (save(graph, folder, n_threads, scratch) for graph in (first, second))
    if _without_digests(one.graph) != _without_digests(other.graph):
        raise NotExchangeableError("onnxruntime's graphs of the pieces differ")
    weights = _weights(one.graph, _own_names(first))
    used: dict[Constant, None] = {}
    for place, node in enumerate(one.graph.graph.node):
        read = {name: weights[name] for name in node.input if name in weights}
        inner = {value for graph in nested(node) for each in graph.node for value in each.input}
        if (node.op_type not in _KNOWN and read) or not inner.isdisjoint(weights):
            raise NotExchangeableError(f"{node.op_type} reads weights")
        if read:
            used |= dict.fromkeys(_Operator(one, other, place, read, n_threads).used())
    return Layout(tuple(used))


def _own_names(graph: bytes) -> set[str]:
    """Names of a graph's own constants, which all its pieces share."""
    own = onnx.load_from_string(graph).graph
    inline = {tensor.name for tensor in own.initializer if not tensor.external_data}
    return inline | {node.output[0] for node in own.node if node.op_type == "Constant"}


def _weights(model: onnx.ModelProto, own: set[str]) -> dict[str, TensorProto]:
    """Saved weights by name: what is neither the graph's own constant, nor an integer that
    onnxruntime made of one.

    Raises NotExchangeableError if one is not in the file of weights.
    """
    found = {}
    for tensor in model.graph.initializer:
        if tensor.name in own or tensor.data_type == TensorProto.INT64:
            continue
        if not tensor.external_data:
            raise NotExchangeableError(f"onnxruntime keeps {tensor.name} in the graph")
        found[tensor.name] = tensor
    return found


def _without_digests(model: onnx.ModelProto) -> bytes:
    """The graph without what depends on the content of weights."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        constants = constants_of(tensor)
        del tensor.external_data[:]
        tensor.doc_string = repr(constants)
    content: bytes = copy.SerializeToString(deterministic=True)
    return content


class _Operator:
    """One operator of two saved pieces, in sessions of its own."""

    def __init__(
        self,
        first: SavedPiece,
        second: SavedPiece,
        place: int,
        weights: Mapping[str, TensorProto],
        n_threads: int,
    ) -> None:
        self._first, self._second, self._place = first, second, place
        self._node = first.graph.graph.node[place]
        self._n_threads = n_threads
        found = (constant for tensor in weights.values() for constant, _ in constants_of(tensor))
        self._layout = Layout(tuple(found))
        self._fed = [name for name in dict.fromkeys(self._node.input) if name not in {"", *weights}]
        self._width, self._kind = _activations(self._node, weights)

    def used(self) -> Iterator[Constant]:
        """Constants on which results depend. Raises EdgespecError if an exchange gives others."""
        record, other = self._first.record(self._layout), self._second.record(self._layout)
        with ExitStack() as stack:
            graph = self._graph(self._first)
            exchanged = stack.enter_context(
                ExchangedSession(self._first, self._layout, self._n_threads, graph)
            )
            own = OrtSession(
                self._graph(self._second, packs=True),
                "an operator",
                self._n_threads,
                CPU.providers(0),
                self._second.path.parent,
            )
            stack.enter_context(own)
            _take(exchanged, other)
            if self._results(exchanged.session) != self._results(own):
                raise NotExchangeableError(f"{self._node.op_type} computes otherwise")
            _take(exchanged, record)
            before = self._results(exchanged.session)
            for begin, constant in self._layout.places():
                changed, end = bytearray(record), begin + constant.nbytes
                changed[begin:end] = bytes(byte ^ 0x15 for byte in record[begin:end])
                _take(exchanged, changed)
                if self._results(exchanged.session) != before:
                    yield constant

    def _graph(self, piece: SavedPiece, packs: bool = False) -> bytes:
        """A graph of the operator alone; `packs` lets onnxruntime pack its weights anew."""
        model = piece.graph
        node = model.graph.node[self._place]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, self._kind, None) for name in names if name]
            for names in (self._fed, node.output)
        )
        weights = [tensor for tensor in model.graph.initializer if tensor.name in node.input]
        graph = helper.make_graph([node], "operator", inputs, outputs, weights)
        for tensor in graph.initializer if packs else ():
            kept = [field for field in tensor.external_data if field.key in _PLAIN]
            replace_content(tensor.external_data, kept)
        content: bytes = model_of(graph, model).SerializeToString()
        return content

    def _results(self, session: OrtSession) -> list[bytes]:
        """Results for several numbers of rows, always of the same values."""
        kind = helper.tensor_dtype_to_np_dtype(self._kind)
        found = []
        for n_rows in ROWS:
            random = np.random.default_rng(n_rows)
            feeds: dict[str, Any] = {
                name: random.normal(size=(1, n_rows, self._width)).astype(kind)
                for name in self._fed
            }
            results = session.run(feeds, dict.fromkeys(session.outputs), StopFlag())
            found += [value.numpy().tobytes() for value in results.values()]
        return found


def _take(session: ExchangedSession, record: bytearray) -> None:
    session.take(ctypes.addressof(ctypes.c_ubyte.from_buffer(record)))


def _activations(node: onnx.NodeProto, weights: Mapping[str, TensorProto]) -> tuple[int, int]:
    """Width and type of what an operator reads besides its weights."""
    if node.op_type == _PRODUCT:
        return int(whole_numbers(node)["K"]), int(weights[node.input[2]].data_type)
    tensor = max(weights.values(), key=lambda one: len(one.dims))
    return (int(tensor.dims[-1]) if tensor.dims else 1), int(tensor.data_type)
