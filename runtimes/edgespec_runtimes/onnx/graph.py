"""A decoder's graph: which inputs play which role, what depends on what, and where layers begin.

All of it is found from the structure: names only tell keys, values and token ids apart. Knows no
weights' bytes and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, defs, inliner

from edgespec.errors import ModelError

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
FUSED_ATTENTION = "GroupQueryAttention"
BATCH_SCALED = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
"""They take one scale for all tokens of a batch, so tokens influence each other."""
PACKED = ("MatMulNBits",)
"""Fast only on weights that onnxruntime has packed for itself."""
LOOKUPS = ("Gather", "GatherBlockQuantized")
_SHAPES = ("Shape", "Size")
_SOURCES = ("Constant", "RandomNormal", "RandomUniform")
_CACHE = re.compile(r"(?:past|present)\D*?(\d+)\D*?(key|value)$")
_FLIPPED = re.compile(r"(?:past|present)_(key|value)s?[._](\d+)$")
_FLOATS: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2}


@dataclass(frozen=True, slots=True)
class Roles:
    """What a decoder's inputs and outputs are for. Lists are ordered by layer: (key, value)."""

    past: tuple[tuple[str, str], ...]
    present: tuple[tuple[str, str], ...]
    kv_kind: int
    """Element type of keys and values, of TensorProto."""
    kv_heads: int
    head_size: int
    n_vocab: int
    has_positions: bool
    has_mask: bool

    @property
    def n_layers(self) -> int:
        return len(self.past)

    @property
    def kv_token_bytes(self) -> int:
        """Of one token in the cache, all layers."""
        return 2 * self.n_layers * self.kv_heads * self.head_size * _FLOATS[self.kv_kind]


def simplified(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Local functions inlined, initializers called by one name. Raises ModelError."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
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
        del graph.node[:]
        graph.node.extend(kept)
    _check_order(graph, feeds | tensors, where)
    _check_operators(model, where)
    # older exports list initializers among the inputs, too
    inputs = [value for value in graph.input if value.name in feeds]
    del graph.input[:]
    graph.input.extend(inputs)
    return model


def find_roles(graph: onnx.GraphProto, where: str) -> Roles:
    """Raises ModelError for what is no decoder with a past."""
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    if IDS not in inputs or LOGITS not in outputs:
        raise ModelError(
            f"{where} is not a decoder: it needs an input {IDS} and an output {LOGITS}, it has "
            f"{_listed(inputs)} and {_listed(outputs)}"
        )
    past, present = _cache(inputs), _cache(outputs)
    if not past or not present:
        raise ModelError(
            f"{where} was exported without a past: export it again as text-generation-with-past"
        )
    if past.keys() != present.keys() or set(past) != {
        (layer, what) for layer in range(len(past) // 2) for what in ("key", "value")
    }:
        raise ModelError(f"{where}: keys and values of its past and present do not correspond")
    known = {IDS, MASK, POSITIONS, *past.values()}
    if unknown := sorted(inputs.keys() - known):
        raise ModelError(
            f"{where} wants inputs that a decoder has no use for: {_listed(unknown)}; "
            "export the decoder alone, as text-generation-with-past"
        )
    n_layers = len(past) // 2
    kinds, shapes = set(), set()
    for name in past.values():
        tensor = inputs[name].type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        kinds.add(tensor.elem_type)
        shapes.add((dims[1], dims[3]) if len(dims) == 4 else (0, 0))
    kv_heads, head_size = next(iter(shapes))
    if len(kinds) > 1 or len(shapes) > 1 or not (kv_heads and head_size):
        raise ModelError(
            f"{where}: its past must be [batch, heads, tokens, head size] with the same, fixed "
            "numbers in every layer"
        )
    if not kinds <= _FLOATS.keys():
        name = TensorProto.DataType.Name(next(iter(kinds)))
        raise ModelError(f"{where} keeps keys and values as {name}: export it as fp32 or fp16")
    return Roles(
        past=tuple((past[i, "key"], past[i, "value"]) for i in range(n_layers)),
        present=tuple((present[i, "key"], present[i, "value"]) for i in range(n_layers)),
        kv_kind=next(iter(kinds)),
        kv_heads=kv_heads,
        head_size=head_size,
        n_vocab=_n_vocab(outputs[LOGITS], where),
        has_positions=POSITIONS in inputs,
        has_mask=MASK in inputs,
    )


def reads(node: NodeProto) -> list[str]:
    """Values that a node reads, those that its nested graphs capture included."""
    return [name for name in (*node.input, *_captures(node)) if name]


class Flow:
    """What depends on what. Node numbers are places in `nodes`, which is in order of execution."""

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
        """Nodes that depend on the content of `values`; their shapes alone do not count."""
        reached, found = set(values), set()
        for i, node in enumerate(self.nodes):
            if not reached.isdisjoint(self.reads[i]):
                if node.op_type in _SHAPES and not through_shapes:
                    continue
                found.add(i)
                reached.update(node.output)
        return found

    def ancestors(self, values: Iterable[str], stop: Iterable[str] = ()) -> list[int]:
        """Nodes that `values` are computed from, in order; what makes `stop` is left out."""
        stopped = set(stop)
        wanted = set(values) - stopped
        found = []
        for i in range(len(self.nodes) - 1, -1, -1):
            if not wanted.isdisjoint(self.nodes[i].output):
                found.append(i)
                wanted.update(name for name in self.reads[i] if name not in stopped)
        return found[::-1]

    def lookups(self) -> list[int]:
        """Nodes that look the tokens' embeddings up."""
        return [
            i
            for i in sorted(self.descendants([IDS]))
            if self.nodes[i].op_type in LOOKUPS
            and self.nodes[i].input[0] in self.tensors
            and self.nodes[i].input[1] == IDS
        ]


@dataclass(frozen=True)
class Stages:
    """The graph divided at the layers: 0 is what precedes them, the last one is the head."""

    stage_of: tuple[int | None, ...]
    """Of each node; None for what depends on nothing that is fed: it goes where it is read."""
    head_input: str
    """The hidden state that the head reads, [batch, tokens, hidden]."""
    head: int
    """The last stage."""


def find_stages(flow: Flow, roles: Roles, where: str) -> Stages:
    """Divide a decoder at its layers.

    The residual stream is what leads from the embeddings to the logits. Every path of it runs
    through some nodes; a layer begins after the last of these before its past joins. Raises
    ModelError if there is no such place.
    """
    lookups = flow.lookups()
    if not lookups:
        raise ModelError(f"{where} is not a decoder: it looks no embeddings up by {IDS}")
    roots = [name for i in lookups for name in flow.nodes[i].output if name]
    leading = set(flow.ancestors([LOGITS]))
    stream = sorted((flow.descendants(roots) | set(lookups)) & leading)
    narrow = _bottlenecks(flow, stream)
    joins = []
    for pair in roles.past:
        joined = flow.descendants(pair)
        joins.append(next((k for k, i in enumerate(stream) if i in joined), len(stream)))
    cuts = [max((k for k in narrow if k < join), default=-1) for join in joins]
    if cuts != sorted(set(cuts)) or cuts[0] < 0 or joins[-1] == len(stream):
        raise ModelError(f"{where}: its layers cannot be told apart in the graph")
    cuts.append(_head_cut(flow, stream, narrow, cuts, where))
    stage_of: list[int | None] = [None] * len(flow.nodes)
    for k, i in enumerate(stream):
        stage_of[i] = sum(cut < k for cut in cuts)
    _place_others(flow, stage_of)
    return Stages(tuple(stage_of), _stream_value(flow, stream, cuts[-1], where), len(cuts))


def _bottlenecks(flow: Flow, stream: Sequence[int]) -> list[int]:
    """Places in `stream` whose nodes every path from its start to its end runs through."""
    place = {i: k for k, i in enumerate(stream)}
    narrow, reach = [], 0
    for k, i in enumerate(stream):
        if reach <= k:
            narrow.append(k)
        for name in flow.nodes[i].output:
            for user in flow.consumers.get(name, ()):
                if flow.nodes[user].op_type not in _SHAPES:
                    reach = max(reach, place.get(user, 0))
    return narrow


def _head_cut(
    flow: Flow, stream: Sequence[int], narrow: Sequence[int], cuts: Sequence[int], where: str
) -> int:
    """Where the last layer ends: as many bottlenecks after its beginning as in other layers."""
    head = next(
        (
            k
            for k in range(len(stream) - 1, -1, -1)
            if any(_is_weight(flow, name) for name in flow.reads[stream[k]])
        ),
        0,
    )
    inside = [k for k in narrow if cuts[-1] < k < head]
    if not inside:
        raise ModelError(f"{where}: the output head cannot be told apart in the graph")
    if len(cuts) > 1:
        usual = sum(cuts[-2] < k <= cuts[-1] for k in narrow)
        return inside[min(usual, len(inside)) - 1]
    return inside[-1]


def _is_weight(flow: Flow, name: str) -> bool:
    """A tensor of the file, or something computed from one alone."""
    while name in flow.producer:
        node = flow.nodes[flow.producer[name]]
        if node.op_type == "Constant" or not node.input:
            return False
        name = node.input[0]
    return name in flow.tensors


def _stream_value(flow: Flow, stream: Sequence[int], cut: int, where: str) -> str:
    """The one value that crosses a cut of the residual stream."""
    later = set(stream[cut + 1 :])
    names: list[str] = [
        name
        for name in flow.nodes[stream[cut]].output
        if not later.isdisjoint(flow.consumers.get(name, ()))
    ]
    if len(names) != 1:
        raise ModelError(f"{where}: the output head reads more than the hidden state")
    return names[0]


def _place_others(flow: Flow, stage_of: list[int | None]) -> None:
    """Stages of what is beside the stream: where it is read, or where it can be first."""
    earliest: list[int | None] = []
    for i, names in enumerate(flow.reads):
        fixed = stage_of[i]
        known = [0 for name in names if name in flow.inputs]
        for name in names:
            if name in flow.producer:
                before = earliest[flow.producer[name]]
                if before is not None:
                    known.append(before)
        earliest.append(fixed if fixed is not None else max(known, default=None))
    for i in range(len(flow.nodes) - 1, -1, -1):
        if stage_of[i] is not None or earliest[i] is None:
            continue
        users = {
            stage_of[user] for name in flow.nodes[i].output for user in flow.consumers.get(name, ())
        }
        stage_of[i] = users.pop() if len(users) == 1 else earliest[i]


def _check_order(graph: onnx.GraphProto, given: set[str], where: str) -> None:
    """Every value is made once, before it is read; nested graphs hold no weights."""
    known = {"", *given}
    for node in graph.node:
        for name in reads(node):
            if name not in known:
                raise ModelError(f"{where} is damaged: {node.op_type} reads {name!r} too early")
        for name in node.output:
            if name and name in known:
                raise ModelError(f"{where} is damaged: {name!r} is made twice")
            known.add(name)
        for inner in nested(node):
            if any(t.data_location == TensorProto.EXTERNAL for t in inner.initializer):
                raise ModelError(f"{where}: weights of a nested graph cannot be read")
        for attribute in node.attribute:
            if attribute.t.data_location == TensorProto.EXTERNAL:
                raise ModelError(f"{where}: a constant of {node.op_type} lies outside the graph")
    for value in graph.output:
        if value.name not in known:
            raise ModelError(f"{where} is damaged: nothing makes its output {value.name!r}")


def _check_operators(model: onnx.ModelProto, where: str) -> None:
    """Standard operators have as many inputs and outputs as their definition wants."""
    versions = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    for node in model.graph.node:
        if not node.input and node.op_type not in _SOURCES:
            raise ModelError(f"{where} is damaged: {node.op_type} reads nothing")
        try:
            domain = "" if node.domain == "ai.onnx" else node.domain
            version = versions.get(domain or "ai.onnx", 1)
            schema = defs.get_schema(node.op_type, version, domain)
        except defs.SchemaError:
            continue  # onnxruntime knows more operators, and is asked later
        if not (
            schema.min_input <= len(node.input) <= schema.max_input
            and schema.min_output <= len(node.output) <= schema.max_output
        ):
            raise ModelError(f"{where} is damaged: {node.op_type} has the wrong number of inputs")


def nested(node: NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes: branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _captures(node: NodeProto) -> list[str]:
    """Values of the surrounding graph that a node's nested graphs read."""
    found = []
    for graph in nested(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        for inner in graph.node:
            found += [name for name in reads(inner) if name not in own]
            own.update(inner.output)
        found += [value.name for value in graph.output if value.name not in own]
    return found


def _cache(values: Iterable[str]) -> dict[tuple[int, str], str]:
    """Names of a past or present by layer and kind."""
    found = {}
    for name in values:
        if match := _CACHE.match(name):
            found[int(match[1]), match[2]] = name
        elif match := _FLIPPED.match(name):
            found[int(match[2]), match[1]] = name
    return found


def _n_vocab(logits: onnx.ValueInfoProto, where: str) -> int:
    dims = logits.type.tensor_type.shape.dim
    if len(dims) != 3 or dims[2].dim_value < 1:
        raise ModelError(f"{where}: its logits must be [batch, tokens, vocabulary]")
    return int(dims[2].dim_value)


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")
