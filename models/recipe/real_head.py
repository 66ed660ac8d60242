"""Makes an EAGLE-3 head (arXiv 2503.01840) for a real model, SmolLM2-135M-Instruct, from text that
this model writes itself. Every stage continues where it stopped: texts, training, GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from torch import nn
from torch.nn.functional import dropout, linear, rms_norm, scaled_dot_product_attention, silu

import gguf_llama
from gguf_llama import Llama, turned
from questions import dialogues
from real_draft import SEED, RowsOfText, Wanted, load_texts, new_parser, train
from self_text import write_texts

LAYERS = (2, 15, 27)
"""Layers of the target whose inputs the head fuses, chosen as EAGLE-3 does."""
BEGINS_AS = 29
"""The target's layer whose matrices the head's layer begins with."""
STEPS, FADING = 4, 0.8
"""Guesses in a row while training, and how much less each one counts."""
STRIDE = 3
"""Places between those from which a second guess and later ones are made."""
DROPOUT = 0.1
"""Share of the layer's inputs that are left out while training: a text is read several times."""
BATCH, RATE = 8, 0.022
"""Rows of text in a step, and Muon's learning rate."""
N_GUESSED = 8192
TEXT_MINUTES, TRAINING_MINUTES = 25.0, 30.0
ABOUT = {
    "name": "SmolLM2-135M-Instruct EAGLE-3 head",
    "organization": "edgespec",
    "license": "apache-2.0",
    "description": "Trained on SmolLM2-135M-Instruct's own text by models/recipe/real_head.py",
}


class EagleHead(nn.Module):
    """Pairs (the next token, hidden states of this one) to what predicts the token after it.

    The target's embeddings and output stay as they are, and are no parameters."""

    token_embd: torch.Tensor
    output: torch.Tensor
    scale: torch.Tensor

    def __init__(self, target: Llama) -> None:
        super().__init__()
        width, hidden = target.shape.width, target.shape.hidden
        self.shape = target.shape
        embeddings = target.token_embd.detach().bfloat16()
        self.register_buffer("token_embd", embeddings, persistent=False)
        self.register_buffer("scale", torch.ones(len(LAYERS), 1))
        layer, left = target.blk[BEGINS_AS], (width, width)
        own = {"attn_norm": torch.ones(width), "attn_norm_2": layer.attn_norm}
        group = target.shape.n_heads // target.shape.n_kv_heads
        generator = torch.Generator().manual_seed(SEED)
        for name in ("attn_q", "attn_k", "attn_v"):
            right = getattr(layer, name).unflatten(0, (-1, self.shape.head))
            right = right.repeat_interleave(1 if name == "attn_q" else group, 0).flatten(0, 1)
            noise = torch.randn(left, generator=generator) * right.std()
            own[name] = torch.cat([noise, right], 1)
        for name in ("attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
            own[name] = getattr(layer, name)
        assert own["ffn_down"].shape == (width, hidden)
        self.blk = nn.ParameterDict(
            {name: nn.Parameter(values.detach().clone()) for name, values in own.items()}
        )
        eye = torch.eye(width)
        self.fc = nn.Parameter(torch.cat([0 * eye, 0 * eye, eye], 1))
        self.output_norm = nn.Parameter(target.output_norm.detach().clone())

    def calibrate(self, states: torch.Tensor) -> None:
        """Bring hidden states [rows, length, layers, values] to one size, and the layer's
        contributions with them."""
        sizes = states.float().pow(2).mean(-1).sqrt().flatten(0, 1)
        self.scale = sizes.median(0).values[:, None]
        with torch.no_grad():
            self.blk["attn_output"] /= self.scale[-1]
            self.blk["ffn_down"] /= self.scale[-1]

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        return linear((states / self.scale).flatten(-2), self.fc)

    def forward(
        self, tokens: torch.Tensor, states: torch.Tensor, starts: torch.Tensor
    ) -> list[torch.Tensor]:
        """Normed hidden states of each step [rows, places, values]. At place n of the first step
        they are about the token after `tokens[n]`, and `states[n]` belong to the token before
        that. Step s is at the places `starts + s`: what it knows of them is what the step before
        predicted, and the target's states end at `starts`, as in a tree."""
        n = tokens.shape[1]
        turns = Llama.turns(self, 0, n)  # type: ignore[arg-type]
        embedded = self._normed(self.token_embd[tokens], self.blk["attn_norm"])
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
                q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=torch.cat(sees, 1)
            )
            x = feature + linear(found.transpose(1, 2).flatten(2), self.blk["attn_output"])
            y = self._normed(x, self.blk["ffn_norm"])
            inner = silu(linear(y, self.blk["ffn_gate"])) * linear(y, self.blk["ffn_up"])
            inner = dropout(inner, DROPOUT, self.training)
            x = x + linear(inner, self.blk["ffn_down"])
            said.append(self._normed(x, self.output_norm))
            if step == 0:
                sees = [starts[:, None] >= at]
            sees.append(torch.eye(len(starts), dtype=torch.bool))
            feature, at = x if step else x[:, starts], starts + step + 1
        return said

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (self.shape.width,), weight.to(x.dtype), self.shape.epsilon)

    def _qkv(
        self, embedded: torch.Tensor, feature: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        both = torch.cat([embedded, self._normed(feature, self.blk["attn_norm_2"])], -1)
        both = dropout(both, DROPOUT, self.training)
        q, k, v = (
            linear(both, self.blk[name]).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        return turned(q, turns), turned(k, turns), v


def divergence(head: EagleHead, texts: RowsOfText) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the target in nats per token over all steps, the later the less, and the
    share of tokens that both rank first, by step."""
    n = texts.tokens.shape[1] - 1
    starts = torch.arange(int(torch.randint(STRIDE, ())), n - STEPS + 1, STRIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        steps = head(texts.tokens[:, 1:], texts.features[:, :-1], starts)
    wanted = Wanted.of(texts.after_first(), head.token_embd)
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


def write(
    head: EagleHead, out: Path, target: Path, kind: str, tokens: np.ndarray | None, borrows: bool
) -> None:
    """Write the head as llama.cpp converts one: it guesses `tokens`, or all of them with the
    target's output; if it `borrows`, it has no embeddings either."""
    file = gguf.GGUFReader(target)
    embedding = next(t for t in file.tensors if t.name == "token_embd.weight")
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "eagle3")
    writer.add_type("model")
    for key, text in ABOUT.items():
        writer.add_string(f"general.{key}", text)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, field in file.fields.items():
        if key.startswith(("tokenizer.", "llama.")) and not key.endswith("chat_template"):
            element = field.types[1] if len(field.types) > 1 else None
            name = key.replace("llama.", "eagle3.")
            writer.add_key_value(name, field.contents(), field.types[0], element)
    changed = {"block_count": 1, "attention.head_count_kv": head.shape.n_heads}
    for key, value in (changed | {"target_hidden_size": head.shape.width}).items():
        writer.kv_data[0].pop(f"eagle3.{key}", None)
        writer.add_uint32(f"eagle3.{key}", value)
    writer.add_array("eagle3.target_layers", list(LAYERS))
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", False)
    if not borrows:
        writer.add_tensor(embedding.name, embedding.data, raw_dtype=embedding.tensor_type)
    if tokens is not None:
        writer.add_tensor("d2t", tokens.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
        writer.add_tensor("output.weight", embedding.data[tokens], raw_dtype=embedding.tensor_type)
    fused = (head.fc.unflatten(1, (len(LAYERS), -1)) / head.scale).flatten(1)
    values = {"fc": fused, "output_norm": head.output_norm}
    values |= {f"blk.0.{name}": value for name, value in head.blk.items()}
    for name, value in values.items():
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


def main() -> None:
    parser = new_parser(__doc__, TEXT_MINUTES, TRAINING_MINUTES)
    parser.add_argument("--kind", default="Q8_0", help="how the layer's matrices are stored")
    parser.add_argument("--n-guessed", type=int, default=N_GUESSED, help="0: all tokens")
    parser.add_argument("--borrow", action="store_true", help="leave the embeddings out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = options.work / "texts"
    write_texts(options.target, dialogues(SEED), folder, 60 * options.text_minutes, LAYERS)
    texts = load_texts(folder)
    print(f"{texts.tokens.numel():,} tokens", flush=True)
    head = EagleHead(gguf_llama.read(options.target))
    head.calibrate(texts.features[:BATCH])
    train(head, texts, options.work, 60 * options.training_minutes, divergence, BATCH, RATE)
    tokens = likeliest(texts, options.n_guessed) if options.n_guessed else None
    write(head, options.out, options.target, options.kind, tokens, options.borrow)


if __name__ == "__main__":
    main()
