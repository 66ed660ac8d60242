"""Validates and simplifies a decoder's graph, and finds dependencies between its nodes.

Reads no weights and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx
from onnx import NodeProto, TensorProto, defs

from edgespec.errors import ModelError
from edgespec_runtimes.onnx.files.roles import IDS
from edgespec_runtimes.onnx.graph.functions import inlined, nested, replace_content
from edgespec_runtimes.onnx.graph.lookups import looks_up, with_columns_gathered
from edgespec_runtimes.onnx.graph.variants import fix_variants

FUSED_ATTENTION = "GroupQueryAttention"
BATCH_SCALED = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
"""Operators with one scale for all tokens of a batch, so that tokens affect each other."""
MIXTURES = ("MoE", "QMoE")
PACKED = ("MatMulNBits",)
"""Operators that are fast only with weights packed by onnxruntime."""
SHAPES = ("Shape", "Size")
"""Operators whose results depend only on shapes."""
_ANGLES = 7
"""Index of an input of GroupQueryAttention."""
_RING_CACHE = "sliding_window_cache"
_SOURCES = ("Constant", "RandomNormal", "RandomUniform")


def simplified(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model with local functions inlined, duplicate names of initializers merged, and
    operators for special execution modes removed. Raises ModelError.
    """
    model = inlined(model, where)
    graph = model.graph
    fix_variants(graph)
    _check_operators(model, where)
    _sort(graph)
    tensors = {tensor.name for tensor in graph.initializer}
    feeds = {value.name for value in graph.input} - tensors
    aliases: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in aliases:
                node.input[i] = aliases[name]
        if node.op_type == "Identity" and node.input[0] in tensors - outputs:
            aliases[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    if aliases:
        captured = {name for node in kept for name in _captures(node)}
        if captured & aliases.keys():
            raise ModelError(f"{where}: a nested graph reads a renamed weight: export it anew")
        replace_content(graph.node, kept)
    _check_order(graph, feeds | tensors, where)
    with_columns_gathered(graph)
    _keep_all_tokens(graph)
    # older exports also list initializers as inputs
    replace_content(graph.input, [value for value in graph.input if value.name in feeds])
    return model


def angle_switch(model: onnx.ModelProto) -> tuple[NodeProto, int] | None:
    """The node that chooses between LongRoPE's two tables of angles, and the length limit of the
    first table.

    A text that grows beyond that limit would have to be computed again.
    """
    graph = model.graph
    maker_of = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type != FUSED_ATTENTION or len(node.input) <= _ANGLES:
            continue
        choice = maker_of.get(node.input[_ANGLES])
        if choice is None or choice.op_type != "If":
            return None
        test = maker_of.get(choice.input[0])
        if test is None or test.op_type != "Greater" or test.input[1] not in maker_of:
            return None
        length = _whole_number(maker_of[test.input[1]])
        return (test, length) if length else None
    return None


def _whole_number(constant: NodeProto) -> int | None:
    """Value of a Constant with a single integer, else None."""
    for attribute in constant.attribute:
        tensor = attribute.t
        if attribute.name == "value" and tensor.data_type == TensorProto.INT64:
            if len(tensor.raw_data) == 8:
                return int.from_bytes(tensor.raw_data, "little", signed=True)
            if len(tensor.int64_data) == 1:
                return int(tensor.int64_data[0])
    return None


def has_any(graph: onnx.GraphProto, operators: Collection[str]) -> bool:
    """True if a node of the graph is one of the operators; nested graphs do not count."""
    return any(node.op_type in operators for node in graph.node)


def reads(node: NodeProto) -> list[str]:
    """Values that a node reads, including those captured by its nested graphs."""
    return [name for name in (*node.input, *_captures(node)) if name]


class Flow:
    """Dependencies between nodes, which are numbered by their index in `nodes`, in execution
    order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = graph = model.graph
        self.nodes = list(graph.node)
        self.reads = [reads(node) for node in self.nodes]
        self.producer = {
            name: i for i, node in enumerate(self.nodes) for name in node.output if name
        }
        self.consumers: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                self.consumers.setdefault(name, []).append(i)
        self.inputs = {value.name for value in graph.input}
        self.outputs = {value.name for value in graph.output}
        self.tensors = {tensor.name for tensor in graph.initializer}

    def descendants(self, values: Iterable[str], through_shapes: bool = False) -> set[int]:
        """Nodes that depend on the content of `values`, not only on their shapes."""
        return set(self.following(values, through_shapes))

    def following(self, values: Iterable[str], through_shapes: bool = False) -> Iterator[int]:
        """Descendants of `values` in graph order."""
        reached = set(values)
        first = min(
            (self.consumers[name][0] for name in reached & self.consumers.keys()), default=0
        )
        for i in range(first, len(self.nodes)):
            if not reached.isdisjoint(self.reads[i]):
                if self.nodes[i].op_type in SHAPES and not through_shapes:
                    continue
                yield i
                reached.update(self.nodes[i].output)

    def ancestors(self, values: Iterable[str], stop: Iterable[str] = ()) -> list[int]:
        """Nodes that `values` depend on, in graph order, up to the values `stop`."""
        stopped = set(stop)
        needed = set(values) - stopped
        found = []
        for i in range(len(self.nodes) - 1, -1, -1):
            if not needed.isdisjoint(self.nodes[i].output):
                found.append(i)
                needed.update(name for name in self.reads[i] if name not in stopped)
        return found[::-1]

    def lookups(self) -> list[int]:
        """Nodes that look up the tokens' embeddings."""
        found = []
        for i in sorted(self.descendants([IDS])):
            if looks_up(self.nodes[i]):
                name = self.nodes[i].input[0]
                maker = self.nodes[self.producer[name]] if name in self.producer else None
                if maker is not None and maker.op_type == "Reshape":
                    name = maker.input[0]
                if name in self.tensors:
                    found.append(i)
        return found


def _damaged(where: str, what: str) -> ModelError:
    return ModelError(f"{where} is damaged: {what}; export or copy it again")


def _sort(graph: onnx.GraphProto) -> None:
    """Sort the nodes so that values are computed before they are read, as exporters need not.

    Sorted graphs are left as they are; what cannot be sorted is found by `_check_order`.
    """
    made = {name for node in graph.node for name in node.output if name}
    ready: set[str] = set()
    waiting: dict[str, list[int]] = {}
    missing: dict[int, int] = {}
    order: list[int] = []
    for i, node in enumerate(graph.node):
        absent = {name for name in reads(node) if name in made and name not in ready}
        missing[i] = len(absent)
        for name in absent:
            waiting.setdefault(name, []).append(i)
        done = [] if absent else [i]
        while done:
            at = done.pop()
            order.append(at)
            for name in graph.node[at].output:
                ready.add(name)
                for reader in waiting.pop(name, ()):
                    missing[reader] -= 1
                    if not missing[reader]:
                        done.append(reader)
    if len(order) == len(graph.node) and order != sorted(order):
        replace_content(graph.node, [graph.node[i] for i in order])


def _check_order(graph: onnx.GraphProto, fed: set[str], where: str) -> None:
    """Check that every value is computed once, before it is read, and that nested graphs have no
    weights."""
    known = {"", *fed}
    for node in graph.node:
        for name in reads(node):
            if name not in known:
                raise _damaged(where, f"{node.op_type} reads {name!r} before it is computed")
        for name in node.output:
            if name and name in known:
                raise _damaged(where, f"{name!r} is computed twice")
            known.add(name)
        for inner in nested(node):
            if any(t.data_location == TensorProto.EXTERNAL for t in inner.initializer):
                raise ModelError(f"{where}: weights of a nested graph cannot be read")
        for attribute in node.attribute:
            if attribute.t.data_location == TensorProto.EXTERNAL:
                raise ModelError(f"{where}: a constant of {node.op_type} lies outside the graph")
    for value in graph.output:
        if value.name not in known:
            raise _damaged(where, f"nothing computes its output {value.name!r}")


def _check_operators(model: onnx.ModelProto, where: str) -> None:
    """Check that standard operators have the required inputs, outputs and attributes."""
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    for node in _with_nested(model.graph):
        is_standard = node.domain in {"", "ai.onnx"}
        if not node.input and not (is_standard and node.op_type in _SOURCES):
            raise _damaged(where, f"{node.op_type} has no input")
        if not node.output:
            raise _damaged(where, f"{node.op_type} has no output")
        if node.op_type == "Constant" and not node.attribute:
            raise _damaged(where, "Constant has no value")
        try:
            domain = "" if node.domain == "ai.onnx" else node.domain
            version = versions.get(domain or "ai.onnx", 1)
            schema = defs.get_schema(node.op_type, version, domain)
        except defs.SchemaError:
            continue  # other operators are checked later by onnxruntime
        if not (
            schema.min_input <= len(node.input) <= schema.max_input
            and schema.min_output <= len(node.output) <= schema.max_output
        ):
            raise _damaged(where, f"{node.op_type} has the wrong number of inputs or outputs")
        present = {attribute.name for attribute in node.attribute}
        for name, attribute in schema.attributes.items():
            if attribute.required and name not in present:
                raise _damaged(where, f"{node.op_type} lacks its attribute {name}")


def _with_nested(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """All nodes of a graph, including those of nested graphs."""
    for node in graph.node:
        yield node
        for inner in nested(node):
            yield from _with_nested(inner)


def _keep_all_tokens(graph: onnx.GraphProto) -> None:
    """Let windowed attention expect a past with all tokens, as in our cache.

    It was built for a ring of the window's size, but computes the same with either.
    """
    for node in graph.node:
        if node.op_type == FUSED_ATTENTION:
            kept = [item for item in node.attribute if item.name != _RING_CACHE]
            replace_content(node.attribute, kept)


def _captures(node: NodeProto) -> list[str]:
    """Values of the surrounding graph that a node's nested graphs capture."""
    found = []
    for graph in nested(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        for inner in graph.node:
            found += [name for name in reads(inner) if name not in own]
            own.update(inner.output)
        found += [value.name for value in graph.output if value.name not in own]
    return found
