"""Trimmed copies on llama.cpp: drafts that get rows of tables, and rate some of the tokens.

The file has the target's layers and an output head for some of its tokens, under the name of the
embeddings, and also of the output where the architecture asks for one or adds to the embeddings of
tokens. Tables of all tokens (embeddings, and those of layers) follow the tensors, where llama.cpp
does not look, and are read by rows, so that it holds only the layers and the head. There is no
tokenizer: token ids are the target's. Of its matrices, those that the target pins are the target's
own, and only the rest is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import ModelError, StateError
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.paging.pager import PinnedSegments
from edgespec.paging.reader import DirectReader
from edgespec.ports import LanguageModel, Progress
from edgespec.registry import ModelRequest, PreparedModel
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context.rows import Rows
from edgespec_runtimes.gguf.file.architectures import Trait, has
from edgespec_runtimes.gguf.file.header import GgufArray, GgufFile, TensorEntry, ValueType
from edgespec_runtimes.gguf.file.layout import (
    EMBEDDINGS,
    NONE,
    OUTPUT,
    PER_LAYER_EMBEDDINGS,
    TENSOR_TYPES,
    padded,
)
from edgespec_runtimes.gguf.kernels.packer import Packer
from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.model import GgufModel, Opening
from edgespec_runtimes.gguf.own_draft.nested import SOURCE, NestedWeights
from edgespec_runtimes.gguf.prepared import PreparedGguf
from edgespec_runtimes.gguf.weights import row_tables
from edgespec_runtimes.gguf.weights.packing import packed_fields
from edgespec_runtimes.gguf.weights.row_tables import RowTable
from edgespec_runtimes.gguf.weights.segments import (
    SMALL_BYTES,
    TracedWeight,
    WeightGroup,
    segment_of,
)
from edgespec_runtimes.kit.segmented import one_by_one

TOKEN_IDS = "edgespec.draft.token_ids"
"""Token of the target for each row of the head, ascending."""
TABLE_TYPE, TABLE_ROWS = "edgespec.draft.embeddings.type", "edgespec.draft.embeddings.rows"


@dataclass(frozen=True, slots=True)
class TrimmedShape:
    """The tokens of a trimmed copy's head, and its tables of embeddings."""

    token_ids: np.ndarray
    """Token of the target for each row of the head, int32, ascending."""
    tables: Sequence[TensorEntry]
    """Embeddings of all tokens, and what layers add for each."""
    takes_tokens: bool
    """True if the graph looks up tokens itself, which are then rows of the pass."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens that have embeddings."""
        return self.tables[0].shape[1]


def is_trimmed(header: GgufFile) -> bool:
    """True if the model is a trimmed copy, which can only be a draft."""
    return TOKEN_IDS in header.entries


def trimmed_shape(header: GgufFile) -> TrimmedShape:
    """Tokens and embeddings of a trimmed copy. Raises ModelError if they do not fit the file."""
    kind = TENSOR_TYPES.get(header.integer(TABLE_TYPE))
    n_embd, n_rows = header.embedding_length, header.integer(TABLE_ROWS)
    if has(header, Trait.NEEDS_TOKENS):
        raise _damaged(header, f"drafts of {header.architecture} are not supported")
    if kind is None or kind.kernels is NONE or n_embd % kind.block_size or n_rows < 1:
        raise _damaged(header, f"{n_rows} embeddings of {n_embd} elements have no such type")
    by_name = header.tensors_by_name
    heads = [by_name[one] for one in (EMBEDDINGS, OUTPUT) if one in by_name]
    tokens = header.metadata[TOKEN_IDS]
    if not isinstance(tokens, GgufArray) or tokens.kind is not ValueType.INT32:
        raise _damaged(header, f"{TOKEN_IDS} is not an array of int32")
    ids = np.array(tokens.values(), np.int32)
    takes_tokens = has(header, Trait.ADDS_TO_TOKENS)
    if len(heads) < 1 + takes_tokens or any(head.shape != (n_embd, len(ids)) for head in heads):
        raise _damaged(header, f"its head has no row for each of {len(ids)} tokens")
    if not (ids[0] >= 0 and ids[-1] < n_rows and (np.diff(ids) > 0).all()):
        raise _damaged(header, f"the tokens of its head are not {len(ids)} of {n_rows}, ascending")
    last = max(tensor.offset + tensor.nbytes for tensor in header.tensors)
    tables, described = list[TensorEntry](), [(n_embd, kind)]
    if per_layer := by_name.get(PER_LAYER_EMBEDDINGS):
        described.append((per_layer.shape[0], per_layer.type))
    for width, type_ in described:
        offset, nbytes = padded(last, header.alignment), type_.nbytes(width * n_rows)
        tables.append(TensorEntry("embeddings", (width, n_rows), type_, 0, offset, nbytes))
        last = offset + nbytes
    if len(header.paths) > 1 or header.path.stat().st_size < last:
        raise _damaged(header, "its embeddings are cut short")
    return TrimmedShape(ids, tables, takes_tokens)


def _damaged(header: GgufFile, what: str) -> ModelError:
    return ModelError(f"{header.path} is damaged: {what}; make the draft again")


class PreparedTrimmed(PreparedGguf):
    """A prepared trimmed copy."""

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        self._trimmed = trimmed_shape(header)
        self._target: PreparedGguf | None = None
        self._nested: NestedWeights | None = None
        """The target's weights of which the draft has the upper parts, if it uses them."""
        super().__init__(request, header)

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, n_vocab=self._trimmed.n_vocab)

    def needs(self) -> ModelNeeds:
        needs = super().needs()
        tables, n_rows = self._trimmed.tables, self.contexts[0][0].largest_batch
        nbytes = sum(row_tables.bytes_for(one, n_rows) for one in tables)
        nbytes += sum(4 * one.shape[0] * n_rows for one in tables)  # as the graph takes them
        row = MemoryRow(self.request.owner, "embedding rows", nbytes)
        needs = replace(needs, fixed=(*needs.fixed, row))
        elsewhere = self._copies.keys() | self._unread
        if not elsewhere or needs.resident is None:
            return needs
        others = [tensor for tensor in self._header.tensors if tensor.name not in elsewhere]
        nbytes = segment_of(others).slot_bytes
        resident = (MemoryRow(self.request.owner, "weights", nbytes), *needs.resident[1:])
        return replace(needs, resident=resident, copies=self._copies)

    def share_with(self, target: PreparedModel, keeps_copies: bool) -> None:
        if isinstance(target, PreparedGguf):
            self._target = None if keeps_copies else target
            if SOURCE in self._header.entries and self.gpu_memory is None:
                self._nested = target.nest_in(self._header)

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        names = (plan.segments[i].weights for i in plan.shared) if plan else ()
        shared = self._copies.keys() & chain.from_iterable(names)
        is_nested = self._nested and plan and plan.paged
        if not (shared or is_nested or self._unread):
            return super().load(plan, progress)
        shape, _ = self.contexts[
            plan.batches.get(self.request.owner, 0) if plan else self.unplanned
        ]
        traced = [one for one in self._mapped.traced if one.entry.name not in self._unread]
        weights = SharedWeights(self._header, traced, shared, self._nested)
        with ExitStack() as on_failure:
            model = self._mapped.take_model()
            on_failure.callback(model.close)
            on_failure.callback(weights.close)
            with self._phase("weights"):
                weights.fill(lambda: self.stop.is_set, progress)
            opened = self._open(model, shape, None)
            on_failure.pop_all()
        assert isinstance(opened, TrimmedModel)
        opened.shared = weights
        return opened

    @cached_property
    def _copies(self) -> Mapping[str, int]:
        """Bytes by name of copies that are not needed of what the target pins."""
        return copy_sizes(self._header, self._target.lent) if self._target else {}

    @property
    def _unread(self) -> frozenset[str]:
        """Tables that the graph looks up: it is given the rows of each pass instead."""
        is_here = self._trimmed.takes_tokens and self.gpu_memory is None
        return frozenset(_LOOKED_UP if is_here else ())

    def _new_model(self, opening: Opening) -> GgufModel:
        shape, path, n_rows = self._trimmed, self._header.path, opening.shape.largest_batch
        n_embedded = 0 if shape.takes_tokens else shape.tables[0].shape[0]
        with ExitStack() as on_failure:
            tables = [RowTable(one, path, n_rows) for one in shape.tables]
            for table in tables:
                on_failure.callback(table.close)
            model = TrimmedModel(replace(opening, n_embedded=n_embedded), shape, tables)
            on_failure.pop_all()
            return model


class TrimmedModel(GgufModel):
    """A loaded trimmed copy, with table rows of the tokens of recent passes in memory."""

    shared: SharedWeights | None = None
    """Its weights, which it closes, if it shares its target's."""
    _target: GgufModel
    """The model whose keys and values it may take over."""

    def __init__(self, opening: Opening, shape: TrimmedShape, tables: Sequence[RowTable]) -> None:
        """Takes ownership of `tables`, those of the shape."""
        super().__init__(opening)
        self.token_ids, self._takes_tokens = shape.token_ids, shape.takes_tokens
        self._tables = tables
        self._convert = [ggml.to_float(one.type.code) for one in shape.tables]
        self._values = [self._batch.embeddings]
        """Rows of the tables in a pass: float32 [n_rows, n_values] each."""
        if shape.takes_tokens:
            n_rows, tensors = opening.shape.largest_batch, dict(opening.model.tensors())
            self._values = [np.zeros((n_rows, one.shape[0]), np.float32) for one in shape.tables]
            for name, values in zip(_LOOKED_UP, self._values, strict=False):
                tensor, row_bytes = abi.GgmlTensor.from_address(tensors[name]), values[0].nbytes
                tensor.type, tensor.data = ggml.F32, values.ctypes.data
                tensor.nb[:] = values.itemsize, row_bytes, *[row_bytes * tensor.ne[1]] * 2

    def borrow_from(self, target: LanguageModel) -> None:
        if isinstance(target, GgufModel):
            self._target, n = target, self.info.block_tokens
            self.info = replace(self.info, takes_prefix=0 < n == target.info.block_tokens)
            if self.shared is not None:
                self.shared.borrow(target.paged_tensors)

    def take_prefix(self, n_tokens: int, slot: int) -> None:
        begin, n_tokens = self.committed_of(slot), min(n_tokens, self.info.n_ctx)
        while begin < n_tokens:
            n = min(self.info.block_tokens, n_tokens - begin)
            try:
                self.read_block(self._target.write_block(begin, slot, n), slot, n)
            except StateError:  # it has another type of cache
                self.info = replace(self.info, takes_prefix=False)
                return
            begin += n

    def _compute(self, rows: Rows, with_logits: Collection[int]) -> int:
        for table, convert, values in zip(self._tables, self._convert, self._values, strict=True):
            table.fetch(rows.tokens)
            for token, row in zip(rows.tokens, values, strict=False):
                convert(table.address_of(token), row.ctypes.data, row.size)
        if self._takes_tokens:
            rows = replace(rows, tokens=[*range(len(rows))])
        return super()._compute(rows, with_logits)

    def _release(self) -> None:
        shared = (self.shared.close,) if self.shared else ()
        close_all(super()._release, *(table.close for table in self._tables), *shared)


_LOOKED_UP = (EMBEDDINGS, PER_LAYER_EMBEDDINGS)
"""Names of the tables of a trimmed copy, in their order."""
_WHERE_VALUES_ARE = ("type", "buffer", "nb", "data", "extra")
"""Fields of a ggml_tensor that say where its values are, and how they are stored."""


def copy_sizes(draft: GgufFile, target: GgufFile | None) -> dict[str, int]:
    """Bytes of the draft's copies of the target's matrices, by name; empty without a target.

    Its head has the name of the target's embeddings, and is no copy of them.
    """
    theirs = target.tensors_by_name if target else {}
    return {
        entry.name: segment_of([entry]).slot_bytes
        for entry in draft.tensors
        if entry.nbytes >= SMALL_BYTES
        and entry.name != EMBEDDINGS
        and entry.name in theirs
        and entry.shape == theirs[entry.name].shape
    }


class SharedWeights(Closeable):
    """The memory of a draft's own weights; its other tensors are pointed to the target's."""

    def __init__(
        self,
        header: GgufFile,
        weights: Sequence[TracedWeight],
        shared: Collection[str],
        nested: NestedWeights | None,
    ) -> None:
        """`shared` are the names of the target's weights; `nested` uses the others, too. Reads
        nothing before `fill`."""
        self._header = header
        self._nested = nested
        self._shared = {w.entry.name: w.address for w in weights if w.entry.name in shared}
        own = [weight for weight in weights if weight.entry.name not in shared]
        matrices = [weight for weight in own if weight.entry.nbytes >= SMALL_BYTES]
        small = [weight for weight in own if weight.entry.nbytes < SMALL_BYTES]
        self._groups = [
            WeightGroup(segment_of([weight.entry for weight in part]), tuple(part))
            for part in (small, *([matrix] for matrix in matrices))
            if part
        ]
        self._memory = PinnedSegments()
        self._packer = Packer()

    def fill(self, is_stopped: Callable[[], bool], progress: Progress | None) -> None:
        """Read the draft's own weights. Raises WeightReadError, and Cancelled once
        `is_stopped`."""
        packed = packed_fields(self._packer, self._header, self._groups)
        path = self._header.path
        reader = self._nested.read_upper(path) if self._nested else DirectReader([path])
        try:
            for group in one_by_one(self._groups, is_stopped, "reading weights", progress):
                base = self._memory.load(group.segment, reader, is_stopped)
                for weight, offset in group.offsets:
                    entry, weight.pointer.value = weight.entry, base + offset
                    is_nested = self._nested and self._nested.put(entry.name, base + offset)
                    if not is_nested and (fields := packed.get(weight.address)):
                        self._packer.pack(base + offset, entry.type.code, *entry.shape)
                        fields.write_to(weight.address)
        finally:
            reader.close()

    def borrow(self, tensors: Mapping[str, int]) -> None:
        """Point the shared tensors to what the target's, given by their addresses, point to."""
        for name, address in self._shared.items():
            ours = abi.GgmlTensor.from_address(address)
            theirs = abi.GgmlTensor.from_address(tensors[name])
            for field in _WHERE_VALUES_ARE:
                setattr(ours, field, getattr(theirs, field))

    def close(self) -> None:
        close_all(self._memory.close, self._packer.close)
