"""Writes tiny ONNX decoders for tests: a LLaMA with random weights in the form of Optimum's export,
or with onnxruntime-genai's fused attention. Knows nothing of the runtime under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gguf_files import byte_level_vocabulary

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
DATA_FILE = "model.onnx_data"
MIN_EXTERNAL_BYTES = 1024


def write_llama(
    folder: Path,
    *,
    layers: int = 3,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    vocab: int = 320,
    dtype: str = "float32",
    seed: int = 0,
    tied: bool = False,
    external: bool = True,
    fused: bool = False,
    bits: int | None = None,
    context: int = 256,
) -> Path:
    """A folder with model.onnx, its weights, config.json and tokenizer.json; returns the model.

    `tied`: the head reads the embedding table. `external`: weights in a file of their own.
    `fused`: attention and norms are single nodes, as onnxruntime-genai builds them. `bits`: 4
    for matrices in MatMulNBits, 8 for int8 with activations quantised as they come.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = _Llama(
        layers, hidden, heads, kv_heads, ffn, vocab, dtype, seed, tied, fused, bits, context
    )
    model = graph.model()
    path = folder / "model.onnx"
    save(model, path, external)
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "eos_token_id": 0,
        "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    if fused:
        inside = {"eos_token_id": 0, "context_length": context, "type": "llama"}
        inside["decoder"] = {"filename": "model.onnx"}
        (folder / "genai_config.json").write_text(json.dumps({"model": inside}))
    write_tokenizer(folder / "tokenizer.json", vocab)
    return path


def save(model: onnx.ModelProto, path: Path, external: bool = True) -> None:
    """Write a model, with its larger weights beside it if `external`."""
    onnx.save_model(
        model,
        path,
        save_as_external_data=external,
        location=DATA_FILE,
        size_threshold=MIN_EXTERNAL_BYTES,
    )


def edit_graph(path: Path, edit: Callable[[onnx.ModelProto], object]) -> None:
    """Change the graph of a model in its file; the weights stay where they are."""
    model = onnx.load(path, load_external_data=False)
    edit(model)
    path.write_bytes(model.SerializeToString())


def write_tokenizer(path: Path, vocab: int) -> None:
    """Byte-level BPE of `vocab` tokens, of which token 0 ends the text."""
    tokens, merges = byte_level_vocabulary(max(0, vocab - 257))
    tokens += [f"<|unused{i}|>" for i in range(vocab - len(tokens))]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    bpe = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(tokens[0], special=True)])
    tokenizer.save(str(path))


class _Llama:
    """Collects the nodes of one graph."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        ffn: int,
        vocab: int,
        dtype: str,
        seed: int,
        tied: bool,
        fused: bool,
        bits: int | None,
        context: int,
    ) -> None:
        self.layers, self.hidden, self.heads, self.kv_heads = layers, hidden, heads, kv_heads
        self.ffn, self.vocab, self.tied, self.fused, self.context = ffn, vocab, tied, fused, context
        self.head_size, self.bits = hidden // heads, bits
        self.dtype, self.kind = np.dtype(dtype), KINDS[dtype]
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.n_values = 0

    def model(self) -> onnx.ModelProto:
        ids = [("input_ids", ["batch_size", "sequence_length"])]
        mask = [("attention_mask", ["batch_size", "total_sequence_length"])]
        positions = [("position_ids", ["batch_size", "sequence_length"])]
        if self.fused:
            positions = []
        whole = [*ids, *mask, *positions]
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in whole]
        outputs = [
            helper.make_tensor_value_info(
                "logits", self.kind, ["batch_size", "sequence_length", self.vocab]
            )
        ]
        for layer in range(self.layers):
            for what in ("key", "value"):
                past = ["batch_size", self.kv_heads, "past_sequence_length", self.head_size]
                present = ["batch_size", self.kv_heads, "total_sequence_length", self.head_size]
                name = f"past_key_values.{layer}.{what}"
                inputs.append(helper.make_tensor_value_info(name, self.kind, past))
                outputs.append(
                    helper.make_tensor_value_info(f"present.{layer}.{what}", self.kind, present)
                )
        self.build()
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def build(self) -> None:
        embedding = self.weight("model.embed_tokens.weight", (self.vocab, self.hidden), 1.0)
        h = self.add("Gather", embedding, "input_ids")
        self.sequence = self.dim("input_ids", 1)
        if self.fused:
            self.fused_prelude()
        else:
            self.prelude()
        x: str | None = None
        for layer in range(self.layers):
            h, x = self.layer(layer, h, x)
        _, x = self.add_and_norm(h, x, "model.norm.weight")
        if self.tied:
            head = self.add("Transpose", embedding, perm=[1, 0])
        else:
            head = self.weight("onnx::MatMul_head", (self.hidden, self.vocab))
        self.add("MatMul", x, head, output="logits")

    def prelude(self) -> None:
        """Mask and rotary angles, which all layers share."""
        past = self.dim("past_key_values.0.key", 2)
        total = self.add("Add", past, self.sequence)
        zero, one = self.scalar(0), self.scalar(1)
        columns = self.add("Range", zero, total, one)
        rows = self.add("Unsqueeze", self.add("Range", past, total, one), self.axes(1))
        causal = self.add("LessOrEqual", columns, rows)
        present = self.add("Cast", "attention_mask", to=TensorProto.BOOL)
        present = self.add("Unsqueeze", present, self.axes(1, 2))
        seen = self.add("And", causal, present)
        lowest = np.finfo(self.dtype).min
        shown = self.constant(np.array(0, self.dtype))
        hidden = self.constant(np.array(lowest, self.dtype))
        self.mask = self.add("Where", seen, shown, hidden)
        half = np.arange(0, self.head_size, 2) / self.head_size
        frequencies = self.constant((10000.0**-half).astype(np.float32))
        positions = self.add("Cast", "position_ids", to=TensorProto.FLOAT)
        angles = self.add("Mul", self.add("Unsqueeze", positions, self.axes(2)), frequencies)
        angles = self.add("Concat", angles, angles, axis=-1)
        self.cos, self.sin = (
            self.add(
                "Cast", self.add("Unsqueeze", self.add(op, angles), self.axes(1)), to=self.kind
            )
            for op in ("Cos", "Sin")
        )

    def fused_prelude(self) -> None:
        """Lengths for GroupQueryAttention, and its table of angles."""
        summed = self.add("ReduceSum", "attention_mask", self.axes(1), keepdims=0)
        less = self.add("Sub", summed, self.scalar(1))
        self.lengths = self.add("Cast", less, to=TensorProto.INT32)
        self.total = self.add("Cast", self.dim("attention_mask", 1), to=TensorProto.INT32)
        half = np.arange(0, self.head_size, 2) / self.head_size
        angles = np.arange(self.context + 128)[:, None] * (10000.0**-half)[None]
        self.cos = self.initializer("cos_cache", np.cos(angles).astype(self.dtype))
        self.sin = self.initializer("sin_cache", np.sin(angles).astype(self.dtype))

    def layer(self, layer: int, h: str, x: str | None) -> tuple[str, str]:
        """The residual stream, and what is to be added to it: of this layer from the one before."""
        h, x = self.add_and_norm(h, x, f"model.layers.{layer}.input_layernorm.weight")
        q, k, v = (
            self.linear(x, f"onnx::MatMul_{layer}_{name}", (self.hidden, width))
            for name, width in (
                ("q", self.hidden),
                ("k", self.kv_heads * self.head_size),
                ("v", self.kv_heads * self.head_size),
            )
        )
        attend = self.fused_attention if self.fused else self.attention
        x = attend(layer, q, k, v)
        x = self.linear(x, f"onnx::MatMul_{layer}_o", (self.hidden, self.hidden))
        h, x = self.add_and_norm(h, x, f"model.layers.{layer}.post_attention_layernorm.weight")
        gate = self.linear(x, f"onnx::MatMul_{layer}_gate", (self.hidden, self.ffn))
        gate = self.add("Mul", gate, self.add("Sigmoid", gate))
        up = self.linear(x, f"onnx::MatMul_{layer}_up", (self.hidden, self.ffn))
        x = self.add("Mul", gate, up)
        return h, self.linear(x, f"onnx::MatMul_{layer}_down", (self.ffn, self.hidden))

    def attention(self, layer: int, q: str, k: str, v: str) -> str:
        q = self.rotate(self.split(q, self.heads))
        k = self.rotate(self.split(k, self.kv_heads))
        v = self.split(v, self.kv_heads)
        past = f"past_key_values.{layer}"
        k = self.add("Concat", f"{past}.key", k, axis=-2, output=f"present.{layer}.key")
        v = self.add("Concat", f"{past}.value", v, axis=-2, output=f"present.{layer}.value")
        k, v = self.repeat(k), self.repeat(v)
        # PyTorch's exporter divides the factor among both, so that halves do not overflow
        factor = self.constant(np.array(self.head_size**-0.25, self.dtype))
        turned = self.add("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.add("MatMul", self.add("Mul", q, factor), self.add("Mul", turned, factor))
        scores = self.add("Add", scores, self.mask)
        if self.kind == TensorProto.FLOAT16:
            scores = self.add("Cast", scores, to=TensorProto.FLOAT)
        weights = self.add("Softmax", scores, axis=-1)
        if self.kind == TensorProto.FLOAT16:
            weights = self.add("Cast", weights, to=self.kind)
        mixed = self.add("Transpose", self.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        shape = self.shape(self.dim("input_ids", 0), self.sequence, self.hidden)
        return self.add("Reshape", mixed, shape)

    def fused_attention(self, layer: int, q: str, k: str, v: str) -> str:
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        out = self.value()
        node = helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *past, self.lengths, self.total, self.cos, self.sin],
            [out, f"present.{layer}.key", f"present.{layer}.value"],
            domain="com.microsoft",
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            do_rotary=1,
            name=f"/model/layers.{layer}/attn/GroupQueryAttention",
        )
        self.nodes.append(node)
        return out

    def split(self, x: str, n_heads: int) -> str:
        shape = self.shape(self.dim(x, 0), self.dim(x, 1), n_heads, self.head_size)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def rotate(self, x: str) -> str:
        half = self.head_size // 2
        first = self.add("Slice", x, self.axes(0), self.axes(half), self.axes(3))
        second = self.add("Slice", x, self.axes(half), self.axes(1 << 62), self.axes(3))
        turned = self.add("Concat", self.add("Neg", second), first, axis=-1)
        return self.add("Add", self.add("Mul", x, self.cos), self.add("Mul", turned, self.sin))

    def repeat(self, x: str) -> str:
        groups = self.heads // self.kv_heads
        batch, length = self.dim(x, 0), self.dim(x, 2)
        wide = self.add("Unsqueeze", x, self.axes(2))
        shape = self.shape(batch, self.kv_heads, groups, length, self.head_size)
        wide = self.add("Expand", wide, shape)
        return self.add("Reshape", wide, self.shape(batch, self.heads, length, self.head_size))

    def add_and_norm(self, h: str, x: str | None, name: str) -> tuple[str, str]:
        """`h` plus `x`, and that normalised; onnxruntime-genai does both in one node."""
        weight = self.initializer(name, self.random.normal(1, 0.1, self.hidden).astype(self.dtype))
        if not self.fused:
            h = self.add("Add", h, x) if x else h
            return h, self.norm(h, weight)
        if x is None:
            return h, self.add(
                "SimplifiedLayerNormalization", h, weight, axis=-1, epsilon=1e-5, stash_type=1
            )
        total, normal = self.value(), self.value()
        node = helper.make_node(
            "SkipSimplifiedLayerNormalization",
            [h, x, weight],
            [normal, "", "", total],
            domain="com.microsoft",
            name=f"/SkipLayerNorm_{len(self.nodes)}",
            epsilon=1e-5,
        )
        self.nodes.append(node)
        return total, normal

    def norm(self, x: str, weight: str) -> str:
        wide = self.add("Cast", x, to=TensorProto.FLOAT)
        square = self.add("Pow", wide, self.constant(np.array(2, np.float32)))
        mean = self.add("ReduceMean", square, axes=[-1])
        root = self.add("Sqrt", self.add("Add", mean, self.constant(np.array(1e-5, np.float32))))
        normal = self.add("Cast", self.add("Div", wide, root), to=self.kind)
        return self.add("Mul", weight, normal)

    def linear(self, x: str, name: str, shape: tuple[int, int]) -> str:
        """`x` times a matrix, in the number of bits that is wanted."""
        if self.bits == 4:
            return self.four_bits(x, name, shape)
        if self.bits == 8:
            return self.eight_bits(x, name, shape)
        return self.add("MatMul", x, self.weight(name, shape))

    def four_bits(self, x: str, name: str, shape: tuple[int, int], block: int = 32) -> str:
        """Blocks of 32 along the inputs, two weights a byte, 8 standing for zero."""
        n_in, n_out = shape
        values = self.random.standard_normal((n_out, n_in // block, block)) * 1.5 * n_in**-0.5
        scale = np.abs(values).max(-1) / 7
        quants = (np.round(values / scale[..., None]) + 8).astype(np.uint8)
        packed = quants[..., 0::2] | quants[..., 1::2] << 4
        weights = self.initializer(f"{name}_Q4", packed)
        scales = self.initializer(f"{name}_scales", scale.reshape(-1).astype(self.dtype))
        node = helper.make_node(
            "MatMulNBits",
            [x, weights, scales],
            [self.value()],
            domain="com.microsoft",
            name=f"/MatMulNBits_{len(self.nodes)}",
            K=n_in,
            N=n_out,
            bits=4,
            block_size=block,
        )
        self.nodes.append(node)
        return node.output[0]

    def eight_bits(self, x: str, name: str, shape: tuple[int, int]) -> str:
        """int8 weights; activations get one scale for the whole batch when they come."""
        values = self.random.standard_normal(shape) * 1.5 * shape[0] ** -0.5
        scale = np.abs(values).max() / 127
        weights = self.initializer(f"{name}_quantized", np.round(values / scale).astype(np.int8))
        quants, step, zero = (self.value() for _ in range(3))
        node = helper.make_node("DynamicQuantizeLinear", [x], [quants, step, zero])
        self.nodes.append(node)
        none = self.constant(np.array(0, np.int8))
        product = self.add("MatMulInteger", quants, weights, zero, none)
        step = self.add("Mul", step, self.constant(np.array(scale, np.float32)))
        return self.add("Mul", self.add("Cast", product, to=TensorProto.FLOAT), step)

    def dim(self, x: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", x), self.scalar(axis), axis=0)

    def shape(self, *dims: str | int) -> str:
        parts = [
            self.add("Unsqueeze", dim, self.axes(0)) if isinstance(dim, str) else self.axes(dim)
            for dim in dims
        ]
        return self.add("Concat", *parts, axis=0)

    def weight(self, name: str, shape: Sequence[int], scale: float | None = None) -> str:
        spread = 1.5 * shape[0] ** -0.5 if scale is None else scale
        values = self.random.standard_normal(shape, np.float32) * spread
        return self.initializer(name, values.astype(self.dtype))

    def initializer(self, name: str, values: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, values: np.ndarray) -> str:
        return self.add("Constant", value=numpy_helper.from_array(values))

    def scalar(self, number: int) -> str:
        return self.constant(np.array(number, np.int64))

    def axes(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def value(self) -> str:
        self.n_values += 1
        return f"/value_{self.n_values}"

    def add(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or self.value()
        self.nodes.append(
            helper.make_node(op, inputs, [output], name=f"/{op}_{len(self.nodes)}", **attributes)
        )
        return output
