"""Replicates the tensors of a LLaMA without changing what it computes. Reads and writes no file.

The law: every vector of the model becomes K copies of itself, and what reads it reads one copy.

- Written copies: the rows of attn_output, ffn_down, gate and up are repeated, and the query heads
  beside the KV head that they share; so are norms, biases and the columns of the embedding. KV
  heads stay as they are, hence a layer's KV cache too.
- Read copies: the weights that meet the first copy are the source's, byte for byte. Those that meet
  another are muted: the same quants with a scale of zero. What they add is exactly zero.
- RMSNorm's mean over K copies is the mean over one, so its epsilon stays and nothing is rescaled.
- A head tied to the embedding reads all K copies: the output norm is divided by K, a power of two.
- Of a mixture, every expert grows like a feed-forward network of its own, and the router reads the
  first copy: all layers choose as the source's do, and as many experts.
- An inserted layer is a copy of the real one before it, with attn_output and ffn_down muted.

Dividing all that is read by K would keep the function too, but sums in another order: on the
embedded target one text in four of 64 tokens changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgespec_runtimes.gguf.file.layout import TensorType


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Dimensions of a LLaMA model."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """True if the head is the embedding, transposed."""
    experts: int = 0
    """Experts per layer; 0 for a dense model."""
    expert_ffn: int = 0
    """Hidden units of an expert."""
    shared_ffn: int = 0
    """Hidden units of shared experts, which all tokens use."""

    def grown(self, factor: int) -> LlamaShape:
        """The shape with `factor` copies; KV heads, and so a layer's KV cache, do not grow."""
        return replace(
            self,
            hidden=self.hidden * factor,
            ffn=self.ffn * factor,
            heads=self.heads * factor,
            expert_ffn=self.expert_ffn * factor,
            shared_ffn=self.shared_ffn * factor,
        )


@dataclass(frozen=True, slots=True)
class Role:
    """Role of a tensor in a layer, which determines how it is replicated.

    `rows` and `columns` are the lengths of runs that are repeated K times in place; None: that
    dimension is unchanged.
    """

    shape: tuple[int, ...]
    columns: int | None = None
    rows: int | None = None
    reads: bool = False
    """True if the columns are multiplied with a replicated vector, of which only the first copy is
    used."""
    feeds_residual: bool = False
    divided: bool = False
    """True if the F32 values are divided by K."""

    def grown(self, factor: int) -> tuple[int, ...]:
        runs = (self.columns, self.rows, None)  # the number of experts is unchanged
        return tuple(
            extent * (factor if run else 1) for extent, run in zip(self.shape, runs, strict=False)
        )

    def repeated(self, raw: bytes, n_rows: int, kind: TensorType, factor: int) -> bytes:
        """`n_rows` rows of the source with their runs of columns repeated in place."""
        if self.divided:
            raw = (np.frombuffer(raw, "<f4") / np.float32(factor)).tobytes()
        if self.columns is None or factor == 1:
            return raw
        runs = np.frombuffer(raw, np.uint8).reshape(n_rows, -1, 1, kind.nbytes(self.columns))
        copies = np.repeat(runs, factor, axis=2)
        if self.reads:
            silent = np.frombuffer(muted(raw, kind), np.uint8).reshape(runs.shape)
            copies[:, :, 1:] = silent
        return copies.tobytes()


def model_roles(shape: LlamaShape) -> dict[str, Role]:
    """Roles of the tensors outside the layers, by name."""
    residual = shape.hidden
    rotated = (shape.head_size // 2,)
    return {
        "token_embd.weight": Role((residual, shape.vocabulary), columns=residual),
        "output_norm.weight": Role((residual,), columns=residual, divided=shape.tied),
        "output.weight": Role((residual, shape.vocabulary), columns=residual, reads=True),
        "rope_freqs.weight": Role(rotated),
        "rope_factors_long.weight": Role(rotated),
        "rope_factors_short.weight": Role(rotated),
    }


def layer_roles(shape: LlamaShape) -> dict[str, Role]:
    """Roles of the tensors of a layer, by the name that follows `blk.N.`."""
    residual, ffn = shape.hidden, shape.ffn
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    group = queries // shape.kv_heads  # the query heads that share one KV head
    norm = Role((residual,), columns=residual)
    key_or_value = Role((residual, keys), columns=residual, reads=True)
    gate_or_up = _from_residual(residual, ffn)
    residual_bias = Role((residual,), columns=residual, feeds_residual=True)
    roles = {
        "attn_norm.weight": norm,
        "attn_q.weight": Role((residual, queries), columns=residual, rows=group, reads=True),
        "attn_q.bias": Role((queries,), columns=group),
        "attn_k.weight": key_or_value,
        "attn_k.bias": Role((keys,)),
        "attn_v.weight": key_or_value,
        "attn_v.bias": Role((keys,)),
        "attn_output.weight": replace(_to_residual(queries, residual), columns=group),
        "attn_output.bias": residual_bias,
        "ffn_norm.weight": norm,
        "ffn_gate.weight": gate_or_up,
        "ffn_gate.bias": Role((ffn,), columns=ffn),
        "ffn_up.weight": gate_or_up,
        "ffn_up.bias": Role((ffn,), columns=ffn),
        "ffn_down.weight": _to_residual(ffn, residual),
        "ffn_down.bias": residual_bias,
    }
    return roles | (_expert_roles(shape) if shape.experts else {})


def _expert_roles(shape: LlamaShape) -> dict[str, Role]:
    """Roles of a mixture's router, of its stacked experts, in which rows of one expert make a run,
    and of what all tokens use."""
    residual, ffn, experts = shape.hidden, shape.expert_ffn, shape.experts
    gate_or_up = _from_residual(residual, ffn, experts)
    shared_gate_or_up = _from_residual(residual, shape.shared_ffn)
    return {
        "ffn_gate_inp.weight": Role((residual, experts), columns=residual, reads=True),
        "ffn_gate_exps.weight": gate_or_up,
        "ffn_up_exps.weight": gate_or_up,
        "ffn_down_exps.weight": _to_residual(ffn, residual, experts),
        "exp_probs_b.bias": Role((experts,)),
        "ffn_gate_shexp.weight": shared_gate_or_up,
        "ffn_up_shexp.weight": shared_gate_or_up,
        "ffn_down_shexp.weight": _to_residual(shape.shared_ffn, residual),
    }


def _from_residual(residual: int, width: int, *stacked: int) -> Role:
    """Role of a projection of the residual stream to hidden units."""
    return Role((residual, width, *stacked), columns=residual, rows=width, reads=True)


def _to_residual(width: int, residual: int, *stacked: int) -> Role:
    """Role of a projection back."""
    shape = (width, residual, *stacked)
    return Role(shape, columns=width, rows=residual, reads=True, feeds_residual=True)


def muted(raw: bytes, kind: TensorType) -> bytes:
    """Whole blocks of `kind` whose values are zero: quants kept where the type allows it."""
    if kind.scales is None:
        return bytes(len(raw))
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, kind.block_bytes).copy()
    blocks[:, slice(*kind.scales)] = 0
    return blocks.tobytes()
