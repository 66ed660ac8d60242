"""A LLaMA or Qwen2 in PyTorch as GGUF files hold it: read from one, trained, written as one.
Rotary pairs are neighbours, as GGUF has them in a LLaMA and not in a Qwen2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from torch import nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    n_vocab: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head: int
    hidden: int
    rope_base: float
    epsilon: float


class Layer(nn.Module):
    """One transformer layer; the names of its parameters are those of GGUF."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        attended, kept = shape.n_heads * shape.head, shape.n_kv_heads * shape.head
        self.attn_norm = nn.Parameter(torch.ones(shape.width))
        self.attn_q = nn.Parameter(torch.zeros(attended, shape.width))
        self.attn_k = nn.Parameter(torch.zeros(kept, shape.width))
        self.attn_v = nn.Parameter(torch.zeros(kept, shape.width))
        self.attn_output = nn.Parameter(torch.zeros(shape.width, attended))
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.ffn_gate = nn.Parameter(torch.zeros(shape.hidden, shape.width))
        self.ffn_up = nn.Parameter(torch.zeros(shape.hidden, shape.width))
        self.ffn_down = nn.Parameter(torch.zeros(shape.width, shape.hidden))
        for name, size in (("q", attended), ("k", kept), ("v", kept)):
            self.register_buffer(f"bias_{name}", torch.zeros(size), persistent=False)

    def qkv(
        self, x: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [batch, heads, length, head] of the normed input."""
        shape = self.shape
        x = rms_norm(x, (shape.width,), self.attn_norm, shape.epsilon)

        def heads(values: torch.Tensor) -> torch.Tensor:
            return values.unflatten(-1, (-1, shape.head)).transpose(1, 2)

        q, k = (
            heads(linear(x, self.attn_q, self.bias_q)),
            heads(linear(x, self.attn_k, self.bias_k)),
        )
        return turned(q, turns), turned(k, turns), heads(linear(x, self.attn_v, self.bias_v))

    def rest(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output of its input and of what its heads found."""
        shape = self.shape
        x = x + linear(attended.transpose(1, 2).flatten(2), self.attn_output)
        y = rms_norm(x, (shape.width,), self.ffn_norm, shape.epsilon)
        return x + linear(silu(linear(y, self.ffn_gate)) * linear(y, self.ffn_up), self.ffn_down)


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: neighbours (a, b) turned by cosines and sines [2, length, head / 2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = turns.to(x.dtype)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Llama(nn.Module):
    """Tokens int64 [batch, length] to the normed last hidden states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Parameter(torch.zeros(shape.n_vocab, shape.width))
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        self.register_buffer("output", None, persistent=False)
        """The output matrix, if it is not the embeddings."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, turns = self.token_embd[tokens], self.turns(0, tokens.shape[1])
        for layer in self.blk:
            q, k, v = layer.qkv(x, turns)
            found = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = layer.rest(x, found)
        return self.normed(x)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (self.shape.width,), self.output_norm, self.shape.epsilon)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.token_embd if self.output is None else self.output)

    def turns(self, start: int, end: int) -> torch.Tensor:
        """Cosines and sines of the positions, [2, length, head / 2]."""
        places = torch.arange(start, end)[:, None]
        pairs = torch.arange(0, self.shape.head, 2)
        angles = places * self.shape.rope_base ** (-pairs / self.shape.head)
        return torch.stack((angles.cos(), angles.sin()))


def read(
    path: Path, layers: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32
) -> Llama:
    """The model of a GGUF file, or the copy of it that has these layers alone, counted from the
    end where negative."""
    file = gguf.GGUFReader(path)
    weights = {tensor.name: tensor for tensor in file.tensors}
    kind = file.fields["general.architecture"].contents()

    def value(name: str) -> float:
        return file.fields[f"{kind}.{name}"].contents()

    n_layers, n_heads, width = (
        value(name) for name in ("block_count", "attention.head_count", "embedding_length")
    )
    layers = tuple(range(n_layers)) if layers is None else tuple(n % n_layers for n in layers)
    shape = Shape(
        n_vocab=len(file.fields["tokenizer.ggml.tokens"].data),
        width=width,
        n_layers=len(layers),
        n_heads=n_heads,
        n_kv_heads=value("attention.head_count_kv"),
        head=width // n_heads,
        hidden=value("feed_forward_length"),
        rope_base=value("rope.freq_base"),
        epsilon=value("attention.layer_norm_rms_epsilon"),
    )

    def values(name: str) -> torch.Tensor:
        tensor = weights[name]
        found = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        found = torch.from_numpy(found)
        if kind != "llama" and name.split(".")[-2] in ("attn_q", "attn_k"):
            halves = found.unflatten(0, (-1, 2, shape.head // 2))
            found = halves.transpose(1, 2).flatten(0, 2)
        return found.to(dtype)

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = Llama(shape)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = name.split(".")
            if parts[0] == "blk":
                parts[1] = str(layers[int(parts[1])])
            parameter.copy_(values(".".join(parts) + ".weight"))
        for number, layer in zip(layers, model.blk, strict=True):
            for name in "qkv":
                if (bias := f"blk.{number}.attn_{name}.bias") in weights:
                    getattr(layer, f"bias_{name}").copy_(values(bias))
    if "output.weight" in weights:
        model.output = values("output.weight")
    return model


def write(model: Llama, out: Path, target: Path, about: dict[str, str], kind: str) -> None:
    """Write `out`: the layers of `model` as `kind`, its norms, and the vocabulary and embedding of
    `target` as they are stored there."""
    file, shape = gguf.GGUFReader(target), model.shape
    embedding = next(t for t in file.tensors if t.name == "token_embd.weight")
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_type("model")
    for key, text in about.items():
        writer.add_string(f"general.{key}", text)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, field in file.fields.items():
        if key.startswith(("tokenizer.", "llama.")) and key != "llama.block_count":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    writer.add_block_count(shape.n_layers)
    writer.add_tensor(embedding.name, embedding.data, raw_dtype=embedding.tensor_type)
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if values.ndim == 1:
            writer.add_tensor(f"{name}.weight", values)
        elif name != "token_embd":
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(f"{name}.weight", quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(out)
