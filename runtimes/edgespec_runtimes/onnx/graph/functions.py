"""Inlines a graph's local functions, after counting what that would make of it.

Functions that call functions can multiply: thirty of them, each calling the next one twice, are a
few kilobytes in a file and a thousand million nodes inlined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, defs, helper, inliner

from edgespec.errors import ModelError

MAX_NODES = 200_000
"""Most nodes of an inlined graph; the largest decoders have some 30,000."""
MAX_BYTES = 128 << 20
"""Most bytes of an inlined graph."""
MAX_DEPTH = 100
"""Most functions that call each other in a row."""

_Name = tuple[str, str, str]


def inlined(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model without local functions. Raises ModelError if it would be too large.

    A function may be written for another version of the operators than the graph; operators that
    changed in between are converted.
    """
    if not model.functions:
        return model
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    n_nodes, nbytes = _InlinedSizes(functions, where).of(model.graph.node)
    if n_nodes > MAX_NODES or nbytes > MAX_BYTES:
        raise ModelError(
            f"{where}: its local functions call each other so often that its graph would have "
            f"{n_nodes:,} nodes of {nbytes >> 20:,} MiB, where at most {MAX_NODES:,} of "
            f"{MAX_BYTES >> 20} MiB are read: export it again without local functions"
        )
    differ = _adopt_versions(model)
    try:
        return inliner.inline_local_functions(model, convert_version=differ)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{where}: its local functions cannot be inlined ({reason}): export it again without "
            "local functions"
        ) from error


def nested(node: NodeProto) -> Iterator[onnx.GraphProto]:
    """The nested graphs of a node: branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def replace_content(field: Any, content: Iterable[Any]) -> None:
    """Replace the content of a repeated field, which protobuf cannot assign."""
    kept = [*content]
    del field[:]
    field.extend(kept)


def whole_numbers(node: NodeProto) -> dict[str, int]:
    """Attributes of a node that are whole numbers, by name."""
    return {attribute.name: attribute.i for attribute in node.attribute}


def model_of(graph: onnx.GraphProto, like: onnx.ModelProto) -> onnx.ModelProto:
    """A model of a graph, whose operators have the versions of another model's."""
    return helper.make_model(graph, opset_imports=like.opset_import, ir_version=like.ir_version)


def _adopt_versions(model: onnx.ModelProto) -> bool:
    """Give functions the graph's version of the operators, in place, where theirs take and return
    the same; true if one keeps another version."""
    own = {opset.domain: opset.version for opset in model.opset_import}
    differ = False
    for function in model.functions:
        for opset in function.opset_import:
            version = own.get(opset.domain, opset.version)
            if all(
                _signature(node, opset.version) == _signature(node, version)
                for node in function.node
                if node.domain == opset.domain
            ):
                opset.version = version
            else:
                differ = True
    return differ


def _signature(node: NodeProto, version: int) -> object:
    """Counts and defaults that an operator has in a version; None if it is unknown."""
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None
    defaults = {
        name: attribute.default_value.SerializeToString()
        for name, attribute in schema.attributes.items()
    }
    counts = schema.min_input, schema.max_input, schema.min_output, schema.max_output
    return counts, defaults


class _InlinedSizes:
    """Nodes and bytes of functions when everything in them is inlined, each counted once."""

    def __init__(self, functions: Mapping[_Name, FunctionProto], where: str) -> None:
        self._functions, self._where = functions, where
        self._known: dict[_Name, tuple[int, int]] = {}
        self._open: list[_Name] = []

    def of(self, nodes: Iterable[NodeProto]) -> tuple[int, int]:
        n_nodes = nbytes = 0
        for node in nodes:
            name = node.domain, node.op_type, node.overload
            if name in self._functions:
                more_nodes, more_bytes = self._of_function(name)
            else:
                more_nodes, more_bytes = 1, node.ByteSize()
            n_nodes, nbytes = n_nodes + more_nodes, nbytes + more_bytes
            for graph in nested(node):
                inside = self.of(graph.node)
                n_nodes, nbytes = n_nodes + inside[0], nbytes + inside[1]
        return n_nodes, nbytes

    def _of_function(self, name: _Name) -> tuple[int, int]:
        if name not in self._known:
            if name in self._open or len(self._open) >= MAX_DEPTH:
                raise ModelError(
                    f"{self._where}: its local function {name[1]!r} calls itself, or is called "
                    f"through more than {MAX_DEPTH} others: export it again without local functions"
                )
            self._open.append(name)
            self._known[name] = self.of(self._functions[name].node)
            self._open.pop()
        return self._known[name]
