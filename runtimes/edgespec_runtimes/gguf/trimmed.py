"""Trimmed copies on llama.cpp: drafts that get embeddings of tokens and rate some of the tokens.

Embeddings are read from the file by rows, so that llama.cpp holds only the layers and the head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from edgespec.concurrency.owning import close_all
from edgespec.errors import ModelError
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import LanguageModel, Progress
from edgespec.runtimes import ModelRequest, PreparedModel
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context.contexts import ContextShape
from edgespec_runtimes.gguf.context.rows import RowBatch, Rows
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.trimmed_header import TrimmedShape, trimmed_shape
from edgespec_runtimes.gguf.llama import ggml, loading
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.prepared import PreparedGguf
from edgespec_runtimes.gguf.weights import row_tables
from edgespec_runtimes.gguf.weights.row_tables import RowTable
from edgespec_runtimes.gguf.weights.shared import SharedWeights, copy_sizes, other_bytes


class PreparedTrimmed(PreparedGguf):
    """A prepared trimmed copy."""

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        if request.owner != "draft":
            raise ModelError(
                f"{header.path} is a draft without a tokenizer, made from a target: name the "
                "target with `model`, and this one with `draft`"
            )
        self._trimmed = trimmed_shape(header)
        self.vocabulary_fingerprint = self._trimmed.vocabulary
        self._target: PreparedGguf | None = None
        super().__init__(request, header)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, n_vocab=self._trimmed.n_vocab)

    def tokens(self) -> Sequence[bytes]:
        return []

    def needs(self) -> ModelNeeds:
        needs = super().needs()
        table, (shape, _) = self._trimmed.table, self._measured.contexts[0]
        nbytes = row_tables.bytes_for(table, shape.largest_batch)
        nbytes += 4 * table.shape[0] * shape.largest_batch  # llama.cpp's batch
        row = MemoryRow(self._request.owner, "embedding rows", nbytes)
        needs = replace(needs, fixed=(*needs.fixed, row))
        if not self._copies or needs.resident is None:
            return needs
        nbytes = other_bytes(self._header, self._copies)
        resident = (MemoryRow(self._request.owner, "weights", nbytes), *needs.resident[1:])
        return replace(needs, resident=resident, copies=self._copies)

    def share_with(self, target: PreparedModel) -> None:
        self._target = target if isinstance(target, PreparedGguf) else None

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        names = (plan.segments[i].weights for i in plan.shared) if plan else ()
        shared = self._copies.keys() & chain.from_iterable(names)
        if plan is None or not shared:
            return super().load(plan, progress)
        shape, _ = self._measured.contexts[plan.batches.get(self._request.owner, 0)]
        traced = self._measured.mapped.traced
        model, weights = (
            self._measured.mapped.take_model(),
            SharedWeights(self._header, traced, shared),
        )
        try:
            with self._phase("weights"):
                weights.fill(self._stop, progress)
        except BaseException:
            close_all(weights.close, model.close)
            raise
        try:
            opened = self._open(model, shape, None)
        except BaseException:
            weights.close()
            raise
        assert isinstance(opened, TrimmedModel)
        opened.hold(weights)
        return opened

    @cached_property
    def _copies(self) -> Mapping[str, int]:
        """Bytes by name of copies that are not needed of what the target pins."""
        return copy_sizes(self._header, self._target.lent) if self._target else {}

    def _new_model(
        self, model: loading.Model, shape: ContextShape, *parts: Any, **settings: Any
    ) -> GgufModel:
        path = self._header.path
        table = TokenEmbeddings(
            self._trimmed, RowTable(self._trimmed.table, path, shape.largest_batch)
        )
        try:
            return TrimmedModel(model, shape, *parts, table=table, **settings)
        except BaseException:
            table.close()
            raise


class TokenEmbeddings:
    """The embeddings of all tokens, in memory only for the tokens of recent passes."""

    def __init__(self, shape: TrimmedShape, rows: RowTable) -> None:
        """Takes ownership of `rows`."""
        self.token_ids = shape.token_ids
        self.n_values, self._scale = shape.table.shape[0], np.float32(shape.scale)
        self._row_bytes = shape.table.nbytes // shape.n_vocab
        self._rows = rows
        self._convert = ggml.to_float(shape.table.type.code)

    def write(self, tokens: Sequence[int], out: np.ndarray) -> None:
        """Write the embeddings of `tokens` to `out`, float32 [tokens, values]."""
        self._rows.fetch(tokens)
        for token, row in zip(tokens, out, strict=True):
            address = self._rows.address + token * self._row_bytes
            self._convert(address, row.ctypes.data, self.n_values)
        if self._scale != 1.0:
            out *= self._scale

    def close(self) -> None:
        self._rows.close()


class TrimmedModel(GgufModel):
    """A loaded trimmed copy."""

    _shared: SharedWeights | None = None

    def __init__(self, *parts: Any, table: TokenEmbeddings, **settings: Any) -> None:
        """Open it like a `GgufModel`; takes ownership of `table`."""
        super().__init__(*parts, **settings)
        self._table, self.token_ids = table, table.token_ids
        self._batch.free()
        self._batch = RowBatch(self._shape.largest_batch, self._shape.n_seq, table.n_values)

    def hold(self, weights: SharedWeights) -> None:
        """Take ownership of its weights, if it shares its target's."""
        self._shared = weights

    def borrow_from(self, target: LanguageModel) -> None:
        if self._shared is not None:
            assert isinstance(target, GgufModel)
            self._shared.borrow(target.paged_tensors)

    def _compute(self, rows: Rows, with_logits: Collection[int]) -> int:
        self._table.write(rows.tokens, self._batch.embeddings(len(rows)))
        return super()._compute(rows, with_logits)

    def _release(self) -> None:
        shared = (self._shared.close,) if self._shared else ()
        close_all(super()._release, self._table.close, *shared)
