"""How the tensors of a LLaMA grow without changing what it computes. Reads and writes no file.

The law. Let K be a power of two and x the source's residual vector. The enlarged model carries K
copies of K * x. Wherever its layers read or write, the source's numbers come out again:

- embedding: rows tiled K times and multiplied by K, which makes the residual what it should be;
- RMSNorm: with epsilon * K**2 the factor K cancels, so that the normalised vector is n, K times
  over; the norm's weights are tiled and divided by K, so each copy is n / K;
- q, k, v, gate and up read K copies of n / K through their own weights tiled along the row, and sum
  to what they were. KV heads stay as they are, hence the KV cache of a layer too; query heads are
  repeated K times beside the KV head that they share, hidden units of the FFN K times;
- attn_output and ffn_down read every value K times through their weights tiled along the row, and
  sum to K times what they were: the residual's factor. Their rows are tiled to reach all K copies;
- output norm and head: norm / K with the head's rows tiled; when the head is tied to the embedding
  its rows carry another K, so norm / K**2;
- biases: those that add to the residual are multiplied by K, all are tiled like their rows;
- an inserted layer is a copy of the real layer before it with zeros for attn_output and ffn_down:
  it computes as much as any other and adds nothing.

Scaling by a power of two is exact: F32 norms and the half-precision scale of a quantised block only
change their exponent. All other weights are copied byte for byte and never quantised again. What
remains is rounding, because the same terms are summed in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.layout import TensorType

F16_SCALES = {
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where in a block the half-precision numbers stand that all its elements are multiples of."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Dimensions of a LLaMA, and whether its head is the embedding."""

    embedding: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    layers: int
    vocabulary: int
    tied: bool


@dataclass(frozen=True, slots=True)
class Role:
    """What a tensor does in a layer, hence how it grows.

    `rows` and `columns` are the lengths of the runs that are repeated K times in place; None leaves
    that direction as it is. The numbers are multiplied by K ** `power`.
    """

    shape: tuple[int, ...]
    columns: int | None = None
    rows: int | None = None
    power: int = 0
    feeds_residual: bool = False

    def grown(self, factor: int) -> tuple[int, ...]:
        runs = (self.columns, self.rows)
        return tuple(
            extent * (factor if run else 1) for extent, run in zip(self.shape, runs, strict=False)
        )

    def repeated(self, rows: bytes, n_rows: int, kind: TensorType, factor: int) -> bytes:
        """`n_rows` rows of the source, scaled, with their runs of columns repeated in place."""
        if self.power and factor > 1:
            rows = scaled(rows, kind, float(factor) ** self.power)
        if self.columns is None or factor == 1:
            return rows
        runs = np.frombuffer(rows, np.uint8).reshape(n_rows, -1, 1, kind.nbytes(self.columns))
        return np.repeat(runs, factor, axis=2).tobytes()


def model_roles(shape: LlamaShape) -> dict[str, Role]:
    """Roles of the tensors outside the layers, by name."""
    residual = shape.embedding
    rotated = (shape.head_size // 2,)
    return {
        "token_embd.weight": Role((residual, shape.vocabulary), columns=residual, power=1),
        "output_norm.weight": Role((residual,), columns=residual, power=-2 if shape.tied else -1),
        "output.weight": Role((residual, shape.vocabulary), columns=residual),
        "rope_freqs.weight": Role(rotated),
        "rope_factors_long.weight": Role(rotated),
        "rope_factors_short.weight": Role(rotated),
    }


def layer_roles(shape: LlamaShape) -> dict[str, Role]:
    """Roles of the tensors of a layer, by the name that follows `blk.N.`."""
    residual, ffn = shape.embedding, shape.ffn
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    group = queries // shape.kv_heads  # the query heads that share one KV head
    norm = Role((residual,), columns=residual, power=-1)
    key_or_value = Role((residual, keys), columns=residual)
    gate_or_up = Role((residual, ffn), columns=residual, rows=ffn)
    residual_bias = Role((residual,), columns=residual, power=1, feeds_residual=True)
    return {
        "attn_norm.weight": norm,
        "attn_q.weight": Role((residual, queries), columns=residual, rows=group),
        "attn_q.bias": Role((queries,), columns=group),
        "attn_k.weight": key_or_value,
        "attn_k.bias": Role((keys,)),
        "attn_v.weight": key_or_value,
        "attn_v.bias": Role((keys,)),
        "attn_output.weight": Role(
            (queries, residual), columns=group, rows=residual, feeds_residual=True
        ),
        "attn_output.bias": residual_bias,
        "ffn_norm.weight": norm,
        "ffn_gate.weight": gate_or_up,
        "ffn_gate.bias": Role((ffn,), columns=ffn),
        "ffn_up.weight": gate_or_up,
        "ffn_up.bias": Role((ffn,), columns=ffn),
        "ffn_down.weight": Role((ffn, residual), columns=ffn, rows=residual, feeds_residual=True),
        "ffn_down.bias": residual_bias,
    }


def scaled(raw: bytes, kind: TensorType, factor: float) -> bytes:
    """Whole blocks of `kind` times a power of two. Raises ModelError when a number gets too big."""
    if kind.name == "F32":
        return (np.frombuffer(raw, "<f4") * np.float32(factor)).tobytes()
    if kind.name == "BF16":
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return ((wide.view("<f4") * np.float32(factor)).view("<u4") >> 16).astype("<u2").tobytes()
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, kind.block_bytes).copy()
    for at in F16_SCALES[kind.name]:
        scales = blocks[:, at : at + 2].copy().view("<f2").astype(np.float32) * factor
        if not np.all(np.abs(scales) <= np.finfo(np.float16).max):
            raise ModelError(f"weights times {factor:g} do not fit the scales of {kind.name}")
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return blocks.tobytes()
