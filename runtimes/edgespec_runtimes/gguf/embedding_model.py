"""Embedding models on llama.cpp: each text is one pass, whose pooled output is its vector.

Weights are paged as a target's are: pinned where memory is left, streamed otherwise. One text a
pass, so that a vector depends on its text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled, ContextOverflow, EdgespecError, UsageError, setting
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.ports import EmbeddingModel, Progress
from edgespec.registry import ModelRequest, PreparedEmbedder
from edgespec.values import ModelInfo, PagingStats
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.context.rows import RowBatch, Rows, fill
from edgespec_runtimes.gguf.file.details import info_of
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.kernels.packer import PIECE_BYTES
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.vocabulary import GgufVocabulary
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.weights.mapped_weights import MappedWeights
from edgespec_runtimes.gguf.weights.offloading import Offloading
from edgespec_runtimes.gguf.weights.packing import packed_matrices
from edgespec_runtimes.gguf.weights.paged import PagedWeights, load_paged
from edgespec_runtimes.gguf.weights.paged_experts import expert_sizes
from edgespec_runtimes.gguf.weights.segments import TRACED_SHAPE

MAX_CTX = 512
"""Longest text unless a longer context is asked for, as in llama.cpp: buffers grow with its
square."""
_ABORTED = 2


class PreparedGgufEmbedder(PreparedEmbedder):
    """A prepared embedding model."""

    info: ModelInfo

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        options = GgufOptions.of(request.options)
        if options.gpu_layers_of("target") or options.servers_of("target"):
            raise UsageError(
                f"{request.path.name} turns texts into vectors, which the CPU computes: leave out "
                f"{setting.n_gpu_layers} and {setting.rpc}"
            )
        self._request = request
        self.header = header
        self.stop = AbortFlag()
        traced = replace(TRACED_SHAPE, pools=True)
        model = loading.load_sizes_only(header.path, no_texts=header)
        try:
            n_ctx = request.ctx_size or min(model.n_ctx_train, MAX_CTX)
            request.check_context(n_ctx, model.n_ctx_train)
            info = info_of(header, model.n_vocab)
            self.info = replace(info, n_ctx=n_ctx, n_layers=model.n_layers, prompt_batch=n_ctx)
            self.shape = replace(
                traced,
                n_ctx=n_ctx,
                n_batch=n_ctx,
                n_threads=loading.useful_threads(header.weight_bytes, request.n_threads),
                # attention rounds as in llama-cpp-python unless flash attention is asked for
                flash_attn="on" if options.flash_attn == "on" else "off",
            )
            self._sizes = contexts.context_sizes(model, self.shape)
            self.n_values = int(lib.llama_model_n_embd_out(model.handle))
        finally:
            model.close()
        timed = partial(request.phase, "mapping", {})
        self._mapped = MappedWeights(header, Offloading, self.stop, timed, traced)

    @property
    def enforced(self) -> bool:
        return self._mapped.is_lazy

    def needs(self) -> ModelNeeds:
        n_rows = self.shape.largest_batch
        paged = [
            MemoryRow("target", "norms and other small tensors", self._mapped.unpaged_bytes),
            MemoryRow("target", "embedding rows", self._mapped.looked_up_bytes(n_rows)),
        ]
        if packed_matrices(self.header):
            paged.append(MemoryRow("target", "copy of what is packed", PIECE_BYTES))
        rows = (
            MemoryRow("target", "KV cache", self._sizes.kv_bytes),
            MemoryRow("target", "compute buffers", self._sizes.compute_bytes),
            MemoryRow("target", "compute graphs", self._sizes.graph_bytes),
            MemoryRow("target", "vectors", 4 * self.n_values * n_rows),
        )
        return ModelNeeds(
            fixed=(),
            batches=(BatchNeeds(self.info.n_ctx, rows),),
            resident=None,
            paged=tuple(paged),
            cuts=tuple(tuple(group.size for group in groups) for groups in self._mapped.cuts),
            experts=expert_sizes(self._mapped.mixtures),
        )

    def load(self, plan: MemoryPlan, progress: Progress | None = None) -> GgufEmbedder:
        model, weights = load_paged(self._mapped, self._request, plan, self.shape, progress)
        try:
            if self.stop.is_set:
                raise Cancelled("loading was cancelled")
            return GgufEmbedder(self, model, weights)
        except BaseException:
            close_all(weights.close, model.close)
            raise

    def cancel(self) -> None:
        self.stop.is_set = True

    def close(self) -> None:
        self._mapped.close()


class GgufEmbedder(EmbeddingModel):
    """A loaded embedding model."""

    def __init__(
        self, prepared: PreparedGgufEmbedder, model: loading.Model, weights: PagedWeights
    ) -> None:
        """Takes ownership of `model` and `weights`."""
        self.info, self.n_values = prepared.info, prepared.n_values
        self.vocabulary = GgufVocabulary(model, prepared.header)
        self._model, self._stop, self._weights = model, prepared.stop, weights
        shape = prepared.shape
        self._context: Any = contexts.new_context(model, shape, weights.callback, self._stop)
        self._batch = RowBatch(shape.n_batch, 1)

    def embed(self, tokens: Sequence[int]) -> np.ndarray:
        """The vector of a text, float32 [n_values], pooled as the model's file says."""
        n_tokens = len(tokens)
        if not n_tokens:
            raise UsageError("the text has no tokens: there is no vector of nothing")
        if n_tokens > self.info.n_ctx:
            raise ContextOverflow(self.info.n_ctx, n_tokens)
        rows = Rows([int(token) for token in tokens], [*range(n_tokens)], [[0]] * n_tokens)
        with self._model.users:
            self._weights.begin_pass(n_tokens)
            try:
                lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
                fill(self._batch, rows, range(n_tokens))
                code = int(lib.llama_decode(self._context, self._batch.raw))
            finally:
                self._weights.end_pass()
            is_stopped, self._stop.is_set = self._stop.is_set, False
            if self._weights.failure is not None:
                raise self._weights.failure
            if is_stopped or code == _ABORTED:
                raise Cancelled("the model was asked to stop")
            if code:
                raise EdgespecError(f"llama.cpp failed to compute (code {code})")
            pooled = lib.llama_get_embeddings_seq(self._context, 0)
            return np.ctypeslib.as_array(pooled, (self.n_values,)).copy()

    def paging(self) -> PagingStats:
        return self._weights.stats

    def cancel(self) -> None:
        self._stop.is_set = True
        self._weights.cancel()

    def close(self) -> None:
        """Cancel the running call, wait for it and free everything. Idempotent, from any thread."""
        self._model.users.close(self.cancel, self._release)

    def _release(self) -> None:
        lib.llama_free(self._context)
        close_all(self._model.close, self._weights.close)
