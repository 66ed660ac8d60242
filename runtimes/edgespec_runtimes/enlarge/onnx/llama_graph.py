"""Writes the graph of a LLaMA with plain operators; inputs and outputs are named as Optimum does.

Says nothing of where weights lie: they are initializers of a name, a type and a shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, MASK, POSITIONS

OPSET, IR_VERSION = 18, 8
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
PARTS = {
    "attn_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Hugging Face's names of what is in a layer."""

_Declared = tuple[str, int, tuple[str | int, ...]]
"""Name, element type and shape."""
_NUMBER = re.compile(r"_\d+$")


def tensor_name(layer: int, part: str) -> str:
    """The initializer of a part of a layer."""
    return f"model.layers.{layer}.{PARTS[part]}.weight"


@dataclass(frozen=True)
class LlamaGraph:
    """Everything that decides the graph besides its tensors."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    frequencies: np.ndarray
    """Float32 [head size / 2]."""
    kv_kind: int
    """Element type, of TensorProto, like the two that follow."""
    residual_kind: int
    logits_kind: int
    kinds: Mapping[str, int]
    """Type of every tensor, by name."""

    @property
    def tied(self) -> bool:
        return HEAD not in self.kinds


def build(shape: LlamaGraph, vocabulary: int) -> onnx.GraphProto:
    """The graph without its tensors."""
    writer = _Writer(shape)
    writer.decoder()
    ids, past = ("batch_size", "sequence_length"), "past_sequence_length"
    both = f"{past} + sequence_length"
    inputs: list[_Declared] = [
        (IDS, INT64, ids),
        (MASK, INT64, ("batch_size", both)),
        (POSITIONS, INT64, ids),
    ]
    outputs: list[_Declared] = [(LOGITS, shape.logits_kind, (*ids, vocabulary))]
    for layer in range(shape.layers):
        for what in ("key", "value"):
            for name, length, values in (
                ("past_key_values", past, inputs),
                ("present", both, outputs),
            ):
                dims = ("batch_size", shape.kv_heads, length, shape.head_size)
                values.append((f"{name}.{layer}.{what}", shape.kv_kind, dims))
    return helper.make_graph(
        writer.nodes,
        "main_graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        writer.constants,
    )


class _Writer:
    """Collects nodes in order of execution. A value is named after the node that makes it."""

    def __init__(self, shape: LlamaGraph) -> None:
        self.shape = shape
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._constant_names: dict[bytes, str] = {}
        self._scope = "/model"

    def decoder(self) -> None:
        embedded = self.add("embed_tokens/Gather", EMBEDDING, IDS)
        stream = self.to("embed_tokens", embedded, EMBEDDING, self.shape.residual_kind)
        mask, rotation = self.mask(), self.rotation()
        for layer in range(self.shape.layers):
            self._scope = f"/model/layers.{layer}"
            stream = self.layer(layer, stream, mask, rotation)
        self._scope = "/model"
        normal = self.norm("norm", stream, NORM)
        head = self.add("lm_head/Transpose", EMBEDDING, perm=[1, 0]) if self.shape.tied else HEAD
        kind = self.shape.kinds[EMBEDDING if self.shape.tied else HEAD]
        normal = self.to("lm_head", normal, NORM, kind)
        if kind == self.shape.logits_kind:
            self.add("lm_head/MatMul", normal, head, output=LOGITS)
        else:
            logits = self.add("lm_head/MatMul", normal, head)
            self.add("lm_head/Cast", logits, output=LOGITS, to=self.shape.logits_kind)

    def mask(self) -> str:
        """Added to scores: [rows, 1, tokens, past + tokens]; 0, or what leaves nothing of them."""
        past = self.add("Past", "past_key_values.0.key", op="Shape", start=2, end=3)
        new = self.add("New", IDS, op="Shape", start=1, end=2)
        none = self.constant(np.array([0], np.int64))
        first, total = self.add("Squeeze", past, none), self.add("Add", past, new)
        total = self.add("Squeeze_1", total, none)
        zero, one = self.constant(np.int64(0)), self.constant(np.int64(1))
        columns = self.add("Range", zero, total, one)
        rows = self.add("Range_1", first, total, one)
        rows = self.add("Unsqueeze", rows, self.axes(1))
        causal = self.add("LessOrEqual", columns, rows)
        attended = self.add("Cast", MASK, to=TensorProto.BOOL)
        attended = self.add("Unsqueeze_1", attended, self.axes(1, 2))
        seen = self.add("And", causal, attended)
        lowest = self.constant(np.finfo(np.float32).min)
        return self.add("Where", seen, self.constant(np.float32(0)), lowest)

    def rotation(self) -> tuple[str, str]:
        """Cosine and sine, [rows, 1, tokens, head size]."""
        positions = self.add("rotary_emb/Cast", POSITIONS, to=FLOAT)
        positions = self.add("rotary_emb/Unsqueeze", positions, self.axes(1, 3))
        frequencies = self.constant(self.shape.frequencies)
        angles = self.add("rotary_emb/Mul", positions, frequencies)
        angles = self.add("rotary_emb/Concat", angles, angles, axis=-1)
        cos = self.add("rotary_emb/Cos", angles)
        sin = self.add("rotary_emb/Sin", angles)
        kind = self.shape.kv_kind
        if kind != FLOAT:
            cos = self.add("rotary_emb/Cast_1", cos, to=kind)
            sin = self.add("rotary_emb/Cast_2", sin, to=kind)
        return cos, sin

    def layer(self, layer: int, stream: str, mask: str, rotation: tuple[str, str]) -> str:
        normal = self.norm("input_layernorm", stream, tensor_name(layer, "attn_norm"))
        mixed = self.attention(layer, normal, mask, rotation)
        stream = self.joined("Add", stream, mixed, tensor_name(layer, "output"))
        normal = self.norm("post_attention_layernorm", stream, tensor_name(layer, "ffn_norm"))
        norm = tensor_name(layer, "ffn_norm")
        gate = self.project("mlp/gate_proj", normal, norm, tensor_name(layer, "gate"))
        sigmoid = self.add("mlp/act_fn/Sigmoid", gate)
        gate = self.add("mlp/act_fn/Mul", gate, sigmoid)
        up = self.project("mlp/up_proj", normal, norm, tensor_name(layer, "up"))
        both = self.add("mlp/Mul", gate, up)
        down = tensor_name(layer, "down")
        out = self.project("mlp/down_proj", both, tensor_name(layer, "up"), down)
        return self.joined("Add_1", stream, out, down)

    def attention(self, layer: int, x: str, mask: str, rotation: tuple[str, str]) -> str:
        """Query heads that share a KV head stand in a dimension of their own: nothing is copied."""
        shape = self.shape
        norm, at = tensor_name(layer, "attn_norm"), "self_attn"
        split = {}
        for part, n_heads in (
            ("query", shape.heads),
            ("key", shape.kv_heads),
            ("value", shape.kv_heads),
        ):
            name = tensor_name(layer, part)
            projected = self.project(f"{at}/{part}", x, norm, name)
            dims = self.axes(0, 0, n_heads, shape.head_size)
            projected = self.add(f"{at}/{part}/Reshape", projected, dims)
            projected = self.add(f"{at}/{part}/Transpose", projected, perm=[0, 2, 1, 3])
            split[part] = self.to(f"{at}/{part}/kv", projected, name, shape.kv_kind)
        query = self.rotate(f"{at}/query", split["query"], rotation)
        keys = self.rotate(f"{at}/key", split["key"], rotation)
        past = f"past_key_values.{layer}"
        present = f"present.{layer}"
        keys = self.add(
            f"{at}/Keys", f"{past}.key", keys, op="Concat", output=f"{present}.key", axis=2
        )
        values = self.add(
            f"{at}/Values",
            f"{past}.value",
            split["value"],
            op="Concat",
            output=f"{present}.value",
            axis=2,
        )
        groups = self.axes(0, shape.kv_heads, shape.heads // shape.kv_heads, -1, shape.head_size)
        query = self.add(
            f"{at}/Reshape", query, groups
        )  # [rows, KV heads, shared by, tokens, size]
        keys = self.add(f"{at}/Transpose", keys, perm=[0, 1, 3, 2])
        keys = self.add(f"{at}/Unsqueeze", keys, self.axes(2))
        scores = self.add(f"{at}/MatMul", query, keys)
        if shape.kv_kind != FLOAT:
            scores = self.add(f"{at}/Cast", scores, to=FLOAT)
        scores = self.add(f"{at}/Mul", scores, self.constant(np.float32(shape.head_size**-0.5)))
        wide_mask = self.add(f"{at}/Unsqueeze_1", mask, self.axes(1))
        scores = self.add(f"{at}/Add", scores, wide_mask)
        weights = self.add(f"{at}/Softmax", scores, axis=-1)
        kind = shape.kinds[tensor_name(layer, "output")]
        if kind != FLOAT:
            weights = self.add(f"{at}/Cast_1", weights, to=kind)
        if kind != shape.kv_kind:
            values = self.add(f"{at}/Cast_2", values, to=kind)
        values = self.add(f"{at}/Unsqueeze_2", values, self.axes(2))
        mixed = self.add(f"{at}/MatMul_1", weights, values)
        dims = self.axes(0, shape.heads, -1, shape.head_size)
        mixed = self.add(f"{at}/Reshape_1", mixed, dims)
        mixed = self.add(f"{at}/Transpose_1", mixed, perm=[0, 2, 1, 3])
        dims = self.axes(0, 0, shape.heads * shape.head_size)
        mixed = self.add(f"{at}/Reshape_2", mixed, dims)
        return self.add(f"{at}/o_proj/MatMul", mixed, tensor_name(layer, "output"))

    def rotate(self, at: str, x: str, rotation: tuple[str, str]) -> str:
        """Element i of a head is turned with element i + size / 2."""
        half, whole, last = self.shape.head_size // 2, self.shape.head_size, self.axes(3)
        first = self.add(f"{at}/Slice", x, self.axes(0), self.axes(half), last)
        second = self.add(f"{at}/Slice_1", x, self.axes(half), self.axes(whole), last)
        turned = self.add(f"{at}/Concat", self.add(f"{at}/Neg", second), first, axis=3)
        cos, sin = rotation
        straight = self.add(f"{at}/Mul", x, cos)
        turned = self.add(f"{at}/Mul_1", turned, sin)
        return self.add(f"{at}/Add", straight, turned)

    def norm(self, at: str, x: str, weight: str) -> str:
        """RMSNorm, computed in fp32; the result has the type of its weight."""
        if self.shape.residual_kind != FLOAT:
            x = self.add(f"{at}/Cast", x, to=FLOAT)
        square = self.add(f"{at}/Pow", x, self.constant(np.float32(2)))
        mean = self.add(f"{at}/ReduceMean", square, self.axes(-1), keepdims=1)
        epsilon = self.constant(np.float32(self.shape.epsilon))
        root = self.add(f"{at}/Sqrt", self.add(f"{at}/Add", mean, epsilon))
        inverse = self.add(f"{at}/Div", self.constant(np.float32(1)), root)
        normal = self.add(f"{at}/Mul", x, inverse)
        if self.shape.kinds[weight] != FLOAT:
            normal = self.add(f"{at}/Cast_1", normal, to=self.shape.kinds[weight])
        return self.add(f"{at}/Mul_1", weight, normal)

    def project(self, at: str, x: str, made_by: str, weight: str) -> str:
        """`x`, of the type of the tensor `made_by`, times a matrix."""
        return self.add(f"{at}/MatMul", self.to(at, x, made_by, self.shape.kinds[weight]), weight)

    def joined(self, name: str, stream: str, x: str, made_by: str) -> str:
        return self.add(name, stream, self.to(name, x, made_by, self.shape.residual_kind))

    def to(self, at: str, x: str, made_by: str, kind: int) -> str:
        """`x`, of the type of the tensor `made_by`, as `kind`."""
        if self.shape.kinds[made_by] == kind:
            return x
        return self.add(f"{at}/Cast_to", x, op="Cast", to=kind)

    def axes(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def constant(self, value: np.ndarray | np.generic) -> str:
        """Name of a constant tensor; equal ones are one."""
        array = np.asarray(value)
        key = array.tobytes() + f"{array.dtype}{array.shape}".encode()
        if key not in self._constant_names:
            name = f"constant_{len(self.constants)}"
            self._constant_names[key] = name
            self.constants.append(numpy_helper.from_array(array, name))
        return self._constant_names[key]

    def add(
        self, name: str, *inputs: str, op: str = "", output: str = "", **attributes: Any
    ) -> str:
        """A node; its operator is the end of its name, less a number, where `op` does not say."""
        path = f"{self._scope}/{name}"
        output = output or f"{path}_output_0"
        op = op or _NUMBER.sub("", name.rpartition("/")[2])
        self.nodes.append(helper.make_node(op, inputs, [output], path, **attributes))
        return output
