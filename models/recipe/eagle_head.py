"""An EAGLE-3 head (arXiv 2503.01840) of a real model, what it loses while it learns to guess
several tokens in a row (training-time test), and its GGUF file as llama.cpp converts one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from torch import nn
from torch.nn.functional import dropout, linear, rms_norm, scaled_dot_product_attention, silu

from edgespec.registry import vocabulary_fingerprint, without_padding
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.layout import MADE_FOR, NO_TOKENIZER
from edgespec_runtimes.gguf.llama import ggml
from gguf_llama import Llama, turned
from real_draft import SEED, RowsOfText, Wanted

N_FUSED = 3
DROPOUT = 0.1
"""Share of a layer's inputs that are left out while training: a text is read several times."""
STEPS, FADING = 4, 0.8
"""Guesses in a row while training, and how much less each one counts."""
STRIDE = 3
"""Places between those from which a second guess and later ones are made."""


def fused_layers(n_layers: int) -> tuple[int, ...]:
    """Layers of the target whose inputs a head fuses, chosen as EAGLE-3 does."""
    return 2, n_layers // 2, n_layers - 3


class EagleHead(nn.Module):
    """Pairs (the next token, hidden states of this one) to what predicts the token after it.

    Its layer begins as the target's last one. The target's embeddings and output are no parameters
    of it."""

    architecture = "eagle3"

    def __init__(self, target: Llama, n_hidden: int, n_kv_heads: int, norms: bool) -> None:
        """`n_hidden`: the largest so many values between the two halves of the layer. `norms`: what
        is fused has a norm of its own (EAGLE-3.1), and can be stored coarsely."""
        super().__init__()
        self.shape, self.n_kv_heads = target.shape, n_kv_heads
        width, layer = self.shape.width, target.blk[-1].float()
        self.register_buffer("token_embd", target.token_embd.detach().bfloat16(), persistent=False)
        output = self.token_embd if target.output is None else target.output.bfloat16()
        self.register_buffer("output", output, persistent=False)
        self.fc = nn.Parameter(torch.zeros(width, N_FUSED * width))
        self.enc_output_norm = nn.Parameter(torch.ones(N_FUSED * width)) if norms else None
        self.register_buffer("scale", torch.ones(N_FUSED, 1))
        self.output_norm = nn.Parameter(target.output_norm.detach().float().clone())
        own = {"attn_norm": torch.ones(width), "attn_norm_2": layer.attn_norm}
        generator = torch.Generator().manual_seed(SEED)
        matrices = {"attn_q": layer.attn_q}
        matrices |= {f"attn_{x}": self._for_heads(getattr(layer, f"attn_{x}")) for x in "kv"}
        for name, right in matrices.items():
            noise = torch.randn((len(right), width), generator=generator) * right.std()
            own[name] = torch.cat([noise, right], 1)
        sizes = layer.ffn_up.norm(dim=1) * layer.ffn_gate.norm(dim=1) * layer.ffn_down.norm(dim=0)
        kept = sizes.topk(min(n_hidden, len(sizes))).indices.sort().values
        own["attn_output"], own["ffn_norm"] = layer.attn_output, layer.ffn_norm
        own["ffn_gate"], own["ffn_up"] = layer.ffn_gate[kept], layer.ffn_up[kept]
        own["ffn_down"] = layer.ffn_down[:, kept]
        parameters = {name: nn.Parameter(w.detach().clone()) for name, w in own.items()}
        self.blk = nn.ModuleList([nn.ParameterDict(parameters)])

    @torch.no_grad()
    def calibrate(self, states: torch.Tensor) -> None:
        """Bring hidden states [rows, length, layers, values] to one size, and the layer's
        contributions with them: what is fused begins as the last of the states."""
        some, width = states.float().flatten(0, 1), self.shape.width
        self.scale = some.pow(2).mean(-1).sqrt().median(0).values[:, None]
        fused = torch.ones(width)
        if self.enc_output_norm is not None:
            each = rms_norm(some.flatten(1), (N_FUSED * width,), None, self.shape.epsilon)
            sizes = each.pow(2).mean(0).sqrt().clamp(min=1e-3)
            self.enc_output_norm.copy_(1 / sizes)
            fused = sizes[-width:] / each[:, -width:].pow(2).mean(-1).sqrt().median()
        self.fc[:, -width:] = torch.diag(fused)
        self.blk[0]["attn_output"] /= self.scale[-1]
        self.blk[0]["ffn_down"] /= self.scale[-1]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        if self.enc_output_norm is None:
            return linear((states / self.scale).flatten(-2), self.fc)
        return linear(self._normed(states.flatten(-2), self.enc_output_norm), self.fc)

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, starts: torch.Tensor
    ) -> list[torch.Tensor]:
        """Normed hidden states of each step [rows, places, values]. At place n of the first step
        they are about the token after `tokens[n]`, and `states[n]` belong to the token before
        that. Step s is at the places `starts + s`: what it knows of them is what the step before
        predicted, and the target's states end at `starts`, as in a tree."""
        n, layer = tokens.shape[1], self.blk[0]
        turns = Llama.turns(self, 0, n)  # type: ignore[arg-type]
        embedded = self._normed(self.token_embd[tokens], layer["attn_norm"])
        feature, at = self.fuse(states), torch.arange(n)
        sees = [at[:, None] >= at]
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        said = []
        for step in range(STEPS):
            q, k, v = self._qkv(embedded[:, at], feature, turns[:, at])
            keys.append(k)
            values.append(v)
            found = scaled_dot_product_attention(
                q, torch.cat(keys, 2), torch.cat(values, 2), torch.cat(sees, 1), enable_gqa=True
            )
            x = feature + linear(found.transpose(1, 2).flatten(2), layer["attn_output"])
            y = self._normed(x, layer["ffn_norm"])
            inner = silu(linear(y, layer["ffn_gate"])) * linear(y, layer["ffn_up"])
            x = x + linear(dropout(inner, DROPOUT, self.training), layer["ffn_down"])
            said.append(self._normed(x, self.output_norm))
            if step == 0:
                sees = [starts[:, None] >= at]
            sees.append(torch.eye(len(starts), dtype=torch.bool))
            feature, at = x if step else x[:, starts], starts + step + 1
        return said

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters by their names in GGUF."""
        values = {"fc": self.fc, "enc.output_norm": self.enc_output_norm}
        if self.enc_output_norm is None:
            values = {"fc": (self.fc.unflatten(1, (N_FUSED, -1)) / self.scale).flatten(1)}
        values |= {f"blk.0.{name}": value for name, value in self.blk[0].items()}
        return values | {"output_norm": self.output_norm}

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight.shape, weight.to(x.dtype), self.shape.epsilon)

    def _for_heads(self, weight: torch.Tensor) -> torch.Tensor:
        """The target's keys or values, copied to as many heads as this head has."""
        group = self.n_kv_heads // self.shape.n_kv_heads
        return weight.unflatten(0, (-1, self.shape.head)).repeat_interleave(group, 0).flatten(0, 1)

    def _heads(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Projection of `x` by the heads of a matrix: [rows, heads, places, values]."""
        return linear(x, weight).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)

    def _qkv(
        self, embedded: torch.Tensor, feature: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        layer = self.blk[0]
        both = torch.cat([embedded, self._normed(feature, layer["attn_norm_2"])], -1)
        both = dropout(both, DROPOUT, self.training)
        q, k, v = (self._heads(both, layer[f"attn_{name}"]) for name in "qkv")
        return turned(q, turns), turned(k, turns), v


def divergence(head: EagleHead, texts: RowsOfText) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the target in nats per token over all steps, the later the less, and the
    share of tokens that both rank first, by step."""
    n = texts.tokens.shape[1] - 1
    starts = torch.arange(int(torch.randint(STRIDE, ())), n - STEPS + 1, STRIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = head(texts.tokens[:, 1:], texts.features[:, :-1], starts)
    wanted = Wanted.of(texts.after_first(), head.output)
    found = torch.stack(
        [wanted.compare(x, starts + step if step else slice(None)) for step, x in enumerate(steps)]
    )
    weights = FADING ** torch.arange(STEPS)
    return (found[:, 0] * weights).sum() / weights.sum(), found[:, 1].detach()


def likeliest(texts: RowsOfText, n_tokens: int) -> np.ndarray:
    """The tokens that the target thinks likeliest over all its texts, in the vocabulary's order."""
    counts = torch.zeros(int(texts.ids.max()) + 1)
    counts.index_add_(0, texts.ids.flatten(), texts.chances.flatten().float().exp())
    return np.sort(counts.topk(min(n_tokens, len(counts))).indices.numpy())


def bits_of(kind: gguf.GGMLQuantizationType) -> float:
    """Bits of a weight, scales included."""
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return 8 * n_bytes / n_weights


def quantised(kind: gguf.GGMLQuantizationType, values: np.ndarray) -> np.ndarray:
    """Rows of weights as bytes of this kind, uint8 [n_rows, n_bytes], by llama.cpp."""
    found = ggml.quantised(kind, np.ascontiguousarray(values, np.float32))
    return np.frombuffer(found, np.uint8).reshape(len(values), -1)


def write(
    head: EagleHead,
    out: Path,
    target: Path,
    about: dict[str, str],
    kind: str,
    tokens: np.ndarray | None,
    borrows: bool,
    layers: tuple[int, ...],
) -> None:
    """Write the head, without a tokenizer: it guesses `tokens`, or all of them with the target's
    output; if it `borrows`, it has no embeddings either. It fuses what enters `layers`."""
    file, name = gguf.GGUFReader(target), head.architecture
    source = file.fields["general.architecture"].contents()
    matrices = {tensor.name: tensor for tensor in file.tensors}
    embedding = matrices["token_embd.weight"]
    output = matrices.get("output.weight", embedding)
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, name)
    writer.add_type("model")
    for key, text in about.items():
        writer.add_string(f"general.{key}", text)
    writer.add_file_type(
        next(one for one in gguf.LlamaFileType if one.name.startswith(f"MOSTLY_{kind}"))
    )
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    counts = ("block_count", "attention.head_count_kv", "feed_forward_length")
    own = {f"{source}.{count}" for count in (*counts, "vocab_size")}
    for key, field in file.fields.items():
        if key.startswith(f"{source}.") and key not in own:
            element = field.types[1] if len(field.types) > 1 else None
            renamed = key.replace(f"{source}.", f"{name}.")
            writer.add_key_value(renamed, field.contents(), field.types[0], element)
    texts = read_header(target).token_table()
    writer.add_tokenizer_model(NO_TOKENIZER)
    writer.add_vocab_size(len(texts))
    writer.add_string(MADE_FOR, vocabulary_fingerprint(without_padding(texts)))
    writer.add_block_count(len(head.blk))
    writer.add_head_count_kv(head.n_kv_heads)
    writer.add_feed_forward_length(head.blk[0]["ffn_up"].shape[0])
    writer.add_array(f"{name}.target_layers", list(layers))
    writer.add_uint32(f"{name}.target_hidden_size", head.shape.width)
    writer.add_bool(f"{name}.norm_before_residual", False)
    writer.add_bool(f"{name}.norm_before_fc", head.enc_output_norm is not None)
    if not borrows:
        writer.add_tensor(embedding.name, embedding.data, raw_dtype=embedding.tensor_type)
    if tokens is not None:
        writer.add_tensor("d2t", tokens.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
        rows, its_kind = output.data[tokens], output.tensor_type
        finest = gguf.GGMLQuantizationType[kind]
        if bits_of(finest) < bits_of(its_kind):
            rows, its_kind = quantised(finest, dequantize(rows, its_kind)), finest
        writer.add_tensor("output.weight", rows, raw_dtype=its_kind)
    for name, value in head.tensors().items():
        array = value.detach().float().numpy()
        # hidden states have values of very different sizes, and so has what fuses them unnormed
        is_coarse = name != "fc" or head.enc_output_norm is not None
        stored = gguf.GGMLQuantizationType[kind if is_coarse else "BF16"]
        if array.ndim == 1:
            writer.add_tensor(f"{name}.weight", array)
        else:
            writer.add_tensor(f"{name}.weight", quantised(stored, array), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(out)
