"""Prepares heads, drafts that read hidden states of their target.

EAGLE-3 and DFlash heads have files of their own; prediction layers (MTP) are in the target's file.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from edgespec.concurrency.owning import close_all
from edgespec.errors import ModelError, setting
from edgespec.memory.budget import MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import LanguageModel, Progress
from edgespec.registry import ModelRequest
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.block_head import GgufBlockHead
from edgespec_runtimes.gguf.borrowed import CopiedWeights, copied_rows
from edgespec_runtimes.gguf.context.contexts import ContextShape
from edgespec_runtimes.gguf.file.header import GgufFile, read_header
from edgespec_runtimes.gguf.file.heads import (
    HeadShape,
    head_shape,
    missing_matrices,
    own_shape,
)
from edgespec_runtimes.gguf.head import GgufHead, GgufOwnHead, HiddenStateReader
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.model import GgufModel, Opening
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf
from edgespec_runtimes.gguf.weights.segments import segment_of


class PreparedReader(PreparedGguf):
    """A prepared model that reads hidden states of its target."""

    def __init__(
        self,
        request: ModelRequest,
        header: GgufFile,
        head: HeadShape,
        lender: Any = None,
        mtp: bool = False,
    ) -> None:
        self._head = head
        super().__init__(_one_text(request, head), header, lender, mtp)

    @property
    def info(self) -> ModelInfo:
        head, block = self._head, self._head.block
        return replace(
            super().info,
            feature_layers=tuple(head.layers),
            feature_values=head.n_values,
            block_guesses=block.n_guesses if block else 0,
            is_chained=bool(block and block.n_candidates),
        )

    def needs(self) -> ModelNeeds:
        needs = super().needs()
        n_values = self._header.embedding_length
        shape, _ = self.contexts[0]
        n_fused = self._head.n_values * len(self._head.layers)
        if self._head.block is None:
            # features of the text, of nodes and in llama.cpp's buffers, and the fusion's input
            n_rows = self.info.n_ctx + 3 * shape.n_rows
            what, nbytes = "features of the text", n_rows * n_values + 4 * shape.n_rows * n_fused
        else:  # features are converted to keys and values at once
            what, nbytes = "features being read", 4 * shape.largest_batch * n_fused
        rows = [MemoryRow(self.request.owner, what, 4 * nbytes)]
        rows += copied_rows(self._head, self.request.owner, shape.largest_batch)
        return replace(needs, fixed=(*needs.fixed, *rows))

    def _new_model(self, opening: Opening) -> GgufModel:
        copies = self._copies(opening.model)
        try:
            if copies is not None:
                copies.fill(opening.shape.largest_batch, self.stop)
            return self._kind(opening, self._head, copies)
        except BaseException:
            if copies is not None:
                copies.close()
            raise

    @property
    def _kind(self) -> type[HiddenStateReader]:
        return GgufHead if self._head.block is None else GgufBlockHead

    @abstractmethod
    def _copies(self, model: loading.Model) -> CopiedWeights | None:
        """The target's weights that it needs, not read yet, and owned by the caller."""


class PreparedHead(PreparedReader):
    """A prepared head in a file of its own."""

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        target = None
        if request.target is not None and missing_matrices(header):
            target = read_header(request.target)
        head = head_shape(header, target)
        self._borrowed = CopiedWeights(head, target) if target is not None else None
        with ExitStack() as owned:
            if self._borrowed is not None:
                owned.enter_context(self._borrowed)
            super().__init__(request, header, head, self._borrowed and self._borrowed.context)
            self._owned = owned.pop_all()

    def close(self) -> None:
        close_all(super().close, self._owned.close)

    def _copies(self, model: loading.Model) -> CopiedWeights | None:
        self._owned.pop_all()  # it is the model's from now on
        if self._borrowed is not None:
            model.lender = self._borrowed.context
        return self._borrowed


class PreparedOwnHead(PreparedReader):
    """A target's own prediction layer (MTP): a second model of the same file with only that layer
    in memory."""

    _kind = GgufOwnHead

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        head = own_shape(header)
        if GgufOptions.of(request.options).gpu_layers_of(request.owner):
            raise ModelError(
                f"the layer of {header.path.name} that guesses (MTP) is computed on the processor: "
                f"leave {setting.n_gpu_layers_draft} out, or name another {setting.draft}"
            )
        super().__init__(request, replace(header, tensors=head.own), head, mtp=True)

    @property
    def info(self) -> ModelInfo:
        info = super().info
        return replace(info, name=f"the layer for guessing (MTP) of {info.name}", n_layers=1)

    def needs(self) -> ModelNeeds:
        nbytes = segment_of(self._head.own).slot_bytes
        weights = MemoryRow(self.request.owner, "layer for guessing (MTP)", nbytes)
        return replace(super().needs(), resident=(weights,))

    def _load_resident(self, shape: ContextShape, progress: Progress | None) -> LanguageModel:
        with self._phase("weights"):
            path, no_texts = self._header.path, self._without_texts
            model, _ = loading.load_mapped(path, mtp=True, no_texts=no_texts)
        return self._open(model, shape, None)

    def _copies(self, model: loading.Model) -> CopiedWeights:
        return CopiedWeights(self._head, self._header, model)


BATCH_SIZE = 32
"""Most prompt tokens in one batch of a head: its compute buffer has logits of every row, 24 MiB for
128 rows and a vocabulary of 49,152."""


def _one_text(request: ModelRequest, head: HeadShape) -> ModelRequest:
    """The request for a head of this shape, which serves one text.

    A block follows the text, so the context has room for both. The graph computes logits of every
    row, so batches are small, and no larger than blocks.
    """
    max_ctx = max(request.max_ctx, request.target_ctx)
    if head.block is None:
        batch_size = min(request.batch_size or BATCH_SIZE, BATCH_SIZE)
        return replace(request, n_slots=1, max_ctx=max_ctx, batch_size=batch_size)
    size = head.block.size
    return replace(
        request,
        n_slots=1,
        max_nodes=size,
        max_branches=1,
        batch_size=size,
        max_ctx=max_ctx + size,
    )
