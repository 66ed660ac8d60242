"""Replicates the tensors of a LLaMA without changing what it computes, in the layout of ONNX
exports.

The law is that of `gguf.replication`: every vector becomes K copies of itself, and what reads it
reads the first. Here a matrix is [in, out]: its rows meet what is read, its columns are written.
Where the other copies are met stand zeros, since floats have no scale of their own to mute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgespec_runtimes.enlarge.sizing import LlamaShape

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class OnnxRole:
    """OnnxRole of a tensor, which decides how it is replicated.

    `rows` and `columns` are the lengths of the runs that are repeated K times in place; None leaves
    that direction as it is. Of repeated rows only the first copy counts.
    """

    shape: tuple[int, ...]
    rows: int | None = None
    columns: int | None = None
    feeds_residual: bool = False
    divided: bool = False
    """Its numbers are divided by K."""

    def grown(self, factor: int) -> tuple[int, ...]:
        runs = (self.rows, self.columns)[-len(self.shape) :]
        return tuple(
            extent * (factor if run else 1) for extent, run in zip(self.shape, runs, strict=True)
        )

    def content(self, values: np.ndarray, factor: int, silent: bool) -> Iterator[bytes]:
        """The grown tensor's bytes, in pieces of about CHUNK_BYTES; of zeros if it is `silent`."""
        rows = values.reshape(-1, values.shape[-1])
        row_bytes = rows.shape[1] * rows.itemsize * (factor if self.columns else 1)
        step = max(1, CHUNK_BYTES // row_bytes)
        run = self.rows or len(rows)
        for run_start in range(0, len(rows), run):
            for copy in range(factor if self.rows else 1):
                for start in range(run_start, run_start + run, step):
                    n_rows = min(step, run_start + run - start)
                    if silent or copy:
                        yield bytes(n_rows * row_bytes)
                    else:
                        yield self._repeated(rows[start : start + n_rows], factor)

    def _repeated(self, rows: np.ndarray, factor: int) -> bytes:
        if self.divided:
            rows = rows / rows.dtype.type(factor)
        if self.columns is None:
            return np.ascontiguousarray(rows).tobytes()
        runs = rows.reshape(len(rows), -1, 1, self.columns)
        return np.repeat(runs, factor, axis=2).tobytes()


def model_roles(shape: LlamaShape) -> dict[str, OnnxRole]:
    """Roles of the tensors outside the layers."""
    hidden = shape.hidden
    roles = {
        "embedding": OnnxRole((shape.vocabulary, hidden), columns=hidden),
        # a head that is the embedding reads all K copies
        "norm": OnnxRole((hidden,), columns=hidden, divided=shape.tied),
    }
    if not shape.tied:
        roles["head"] = OnnxRole((hidden, shape.vocabulary), rows=hidden)
    return roles


def layer_roles(shape: LlamaShape) -> dict[str, OnnxRole]:
    """Roles of a layer's tensors, by the fields of `LayerWeights`."""
    hidden, ffn = shape.hidden, shape.ffn
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    group = queries // shape.kv_heads  # the query heads that share one KV head
    norm = OnnxRole((hidden,), columns=hidden)
    key_or_value = OnnxRole((hidden, keys), rows=hidden)
    gate_or_up = OnnxRole((hidden, ffn), rows=hidden, columns=ffn)
    return {
        "attn_norm": norm,
        "query": OnnxRole((hidden, queries), rows=hidden, columns=group),
        "key": key_or_value,
        "value": key_or_value,
        "output": OnnxRole((queries, hidden), rows=group, columns=hidden, feeds_residual=True),
        "ffn_norm": norm,
        "gate": gate_or_up,
        "up": gate_or_up,
        "down": OnnxRole((ffn, hidden), rows=ffn, columns=hidden, feeds_residual=True),
    }
