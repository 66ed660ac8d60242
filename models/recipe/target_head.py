"""Shared by heads of a real model: hidden states of the target brought to one size and fused, its
embeddings and output, which stay as they are, and the GGUF file as llama.cpp converts one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from torch import nn
from torch.nn.functional import linear, rms_norm

from gguf_llama import Llama
from real_draft import RowsOfText

LAYERS = (2, 15, 27)
"""Layers of the target whose inputs a head fuses, chosen as EAGLE-3 does."""
DROPOUT = 0.1
"""Share of a layer's inputs that are left out while training: a text is read several times."""


class TargetHead(nn.Module):
    """Guesses from the target's hidden states. The target's embeddings and output are no parameters
    of it."""

    architecture: ClassVar[str]
    token_embd: torch.Tensor
    scale: torch.Tensor
    blk: nn.ModuleList
    """One `nn.ParameterDict` a layer, by the names of GGUF."""

    def __init__(self, target: Llama) -> None:
        super().__init__()
        self.shape = target.shape
        embeddings = target.token_embd.detach().bfloat16()
        self.register_buffer("token_embd", embeddings, persistent=False)
        self.register_buffer("scale", torch.ones(len(LAYERS), 1))
        eye = torch.eye(self.shape.width)
        self.fc = nn.Parameter(torch.cat([0 * eye, 0 * eye, eye], 1))
        self.output_norm = nn.Parameter(target.output_norm.detach().clone())

    def calibrate(self, states: torch.Tensor) -> None:
        """Bring hidden states [rows, length, layers, values] to one size."""
        sizes = states.float().pow(2).mean(-1).sqrt().flatten(0, 1)
        self.scale = sizes.median(0).values[:, None]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return linear((states / self.scale).flatten(-2), self.fc)

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight.shape, weight.to(x.dtype), self.shape.epsilon)

    def heads(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Projection of `x` by the heads of a matrix: [rows, heads, places, values]."""
        return linear(x, weight).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)

    def for_every_head(self, weight: torch.Tensor) -> torch.Tensor:
        """The target's keys or values, one copy for each head of its queries."""
        group = self.shape.n_heads // self.shape.n_kv_heads
        return weight.unflatten(0, (-1, self.shape.head)).repeat_interleave(group, 0).flatten(0, 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by their names in GGUF, where nothing scales hidden states."""
        fused = (self.fc.unflatten(1, (len(LAYERS), -1)) / self.scale).flatten(1)
        values = {"fc": fused, "output_norm": self.output_norm}
        for number, layer in enumerate(self.blk):
            values |= {f"blk.{number}.{name}": value for name, value in layer.items()}
        return values

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        """Add what this kind of head has and the target has not."""
        raise NotImplementedError


def likeliest(texts: RowsOfText, n_tokens: int) -> np.ndarray:
    """The tokens that the target thinks likeliest over all its texts, in the vocabulary's order."""
    counts = torch.zeros(int(texts.ids.max()) + 1)
    counts.index_add_(0, texts.ids.flatten(), texts.chances.flatten().float().exp())
    return np.sort(counts.topk(min(n_tokens, len(counts))).indices.numpy())


def write(
    head: TargetHead,
    out: Path,
    target: Path,
    about: dict[str, str],
    kind: str,
    tokens: np.ndarray | None,
    borrows: bool,
) -> None:
    """Write the head: it guesses `tokens`, or all of them with the target's output; if it
    `borrows`, it has no embeddings either."""
    file, name = gguf.GGUFReader(target), head.architecture
    embedding = next(t for t in file.tensors if t.name == "token_embd.weight")
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, name)
    writer.add_type("model")
    for key, text in about.items():
        writer.add_string(f"general.{key}", text)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    own = ("llama.block_count", "llama.attention.head_count_kv", "tokenizer.chat_template")
    for key, field in file.fields.items():
        if key.startswith(("tokenizer.", "llama.")) and key not in own:
            element = field.types[1] if len(field.types) > 1 else None
            renamed = key.replace("llama.", f"{name}.")
            writer.add_key_value(renamed, field.contents(), field.types[0], element)
    writer.add_block_count(len(head.blk))
    writer.add_head_count_kv(head.shape.n_heads)
    writer.add_array(f"{name}.target_layers", list(LAYERS))
    head.add_metadata(writer)
    if not borrows:
        writer.add_tensor(embedding.name, embedding.data, raw_dtype=embedding.tensor_type)
    if tokens is not None:
        writer.add_tensor("d2t", tokens.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
        writer.add_tensor("output.weight", embedding.data[tokens], raw_dtype=embedding.tensor_type)
    for name, value in head.tensors().items():
        array = value.detach().float().numpy()
        # hidden states have values of very different sizes, and so has what fuses them
        stored = gguf.GGMLQuantizationType["BF16" if name == "fc" else kind]
        if array.ndim == 1:
            writer.add_tensor(f"{name}.weight", array)
        else:
            writer.add_tensor(f"{name}.weight", quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(out)
