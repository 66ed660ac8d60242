"""Traces the weights that llama.cpp's graph reads, in order of use, and cuts them into segments.

The graph is traced node by node before anything is computed. Moves no weights: `weights` fills the
segments.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.memory.pinning import SegmentSize
from edgespec.paging.reader import BLOCK_BYTES, READ_BYTES, Extent, Segment
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.weights.row_tables import LOOKUP, n_rows_named

SMALL_BYTES = BLOCK_BYTES
"""Smaller matrices, such as norms and biases, stay in memory."""
MATMULS = ("MUL_MAT", "MUL_MAT_ID")
MIN_SLICE_BYTES = READ_BYTES
"""Smallest slice but where the budget is smaller still: each one costs a read and a stop of the
computation."""
ROWS_ALIKE = 64
"""Granularity of rows in slices, a multiple of 4, 8 and 16: ggml chooses kernels by the number of
rows modulo these."""


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The node with a layer's chosen experts, int32 [n_used, n_tokens]."""

    name: str
    """Name of the node, unique and the same in every graph."""
    op: int
    n_used: int


@dataclass(frozen=True, slots=True)
class TracedWeight:
    """A tensor of the file that the graph reads, and its ggml_tensor."""

    entry: TensorEntry
    address: int
    """Address of the ggml_tensor."""
    swappable: bool
    """True if only one matrix product reads it, directly, so that its pointer may change between
    passes."""
    rows_per_token: int
    """Rows looked up per token; 0 if it is not a lookup table."""
    choice: ExpertChoice | None = None
    """The node with the chosen experts, for a stack of experts."""
    divisible: bool = False
    """True if its product can be computed in slices of its rows."""

    @property
    def looked_up(self) -> bool:
        """True if a pass reads only the rows that it looks up."""
        return self.rows_per_token > 0

    @property
    def pointer(self) -> ctypes.c_uint64:
        """The tensor's data pointer, to read and to write."""
        return ctypes.c_uint64.from_address(self.address + abi.DATA_OFFSET)

    @property
    def stride(self) -> ctypes.c_size_t:
        """Byte stride between the matrices of a stack, to read and to write."""
        return ctypes.c_size_t.from_address(self.address + abi.STACK_STRIDE_OFFSET)


@dataclass(frozen=True, slots=True)
class _Use:
    """A node of the graph that reads a weight."""

    node: int
    op: str
    direct: bool
    """True if the weight is the node's first operand, and not through a view."""
    n_rows: int = 0
    """Number of rows that it looks up; 0 if unknown before computing."""
    chosen_by: int = 0
    """For MUL_MAT_ID, the node with the chosen experts."""


TRACED_SHAPE = contexts.ContextShape(n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)
"""The context whose graph is traced, of a model that writes."""


def trace_weights(
    model: loading.Model,
    header: GgufFile,
    stop: AbortFlag,
    shape: contexts.ContextShape = TRACED_SHAPE,
) -> list[TracedWeight]:
    """The weights that a pass reads, in the order of their products. Computes nothing.

    Embeddings tied to the output head are ordered as the head. llama.cpp calls the callback for the
    whole graph before it computes a node; the abort flag is set, so that the decode ends there.
    """
    entries = header.tensors_by_name
    uses: dict[int, list[_Use]] = {}
    names: Counter[str] = Counter()
    choices: dict[int, ExpertChoice] = {}
    n_nodes = 0

    @lib.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator, unused-ignore]
    def watch(node: int, ask: bool, _: Any) -> bool:
        nonlocal n_nodes
        n_nodes += 1
        tensor = abi.GgmlTensor.from_address(node)
        names[tensor.name.decode()] += 1
        op = abi.op_name(tensor.op)
        n_rows = n_rows_named(tensor.src[1]) if op == LOOKUP else 0
        chosen_by = tensor.src[2] or 0 if op == "MUL_MAT_ID" else 0
        if chosen_by:
            chosen = abi.GgmlTensor.from_address(chosen_by)
            choices[chosen_by] = ExpertChoice(chosen.name.decode(), chosen.op, chosen.ne[0])
        for position, source in enumerate(tensor.src):
            address, through_view = source, False
            while address and (parent := abi.GgmlTensor.from_address(address).view_src):
                address, through_view = parent, True
            if address and abi.GgmlTensor.from_address(address).name.decode() in entries:
                direct = position == 0 and not through_view
                use = _Use(n_nodes, op, direct, n_rows, chosen_by)
                uses.setdefault(address, []).append(use)
        return False

    stop.is_set = True
    context = contexts.new_context(model, shape, watch, stop)
    try:
        tokens = (ctypes.c_int32 * 1)(0)
        lib.llama_decode(context, lib.llama_batch_get_one(tokens, 1))
    finally:
        stop.is_set = False
        lib.llama_free(context)
    if not uses:
        raise EdgespecError("llama.cpp did not show which weights its graph reads")
    weights = []
    for address, seen in sorted(uses.items(), key=lambda use: _first_product(use[1])):
        name = abi.GgmlTensor.from_address(address).name.decode()
        products = [use for use in seen if use.op != LOOKUP]
        swappable = (
            len(products) == 1
            and products[0].op in MATMULS
            and all(use.direct for use in seen)
            and entries[name].nbytes >= SMALL_BYTES
        )
        choice = choices.get(products[0].chosen_by) if swappable else None
        weights.append(
            TracedWeight(
                entry=entries[name],
                address=address,
                swappable=swappable,
                rows_per_token=_rows_per_token(entries[name], seen),
                choice=choice if choice and names[choice.name] == 1 else None,
                divisible=swappable
                and products[0].op == "MUL_MAT"
                and len(entries[name].shape) == 2,
            )
        )
    return weights


def _rows_per_token(entry: TensorEntry, uses: Sequence[_Use]) -> int:
    """Rows looked up per token.

    It is 0 unless the table is looked up directly with a known number of rows, and is otherwise
    only used in matrix products: other nodes need the whole table.
    """
    lookups = [use for use in uses if use.op == LOOKUP]
    if len(entry.shape) != 2 or entry.nbytes < SMALL_BYTES:
        return 0
    if not all(use.direct and use.n_rows for use in lookups):
        return 0
    if not all(use.direct and use.op in (LOOKUP, *MATMULS) for use in uses):
        return 0
    return sum(use.n_rows for use in lookups)


def _first_product(uses: Sequence[_Use]) -> int:
    """The first node that reads a weight other than by lookup, if there is one."""
    return min((use.node for use in uses if use.op != LOOKUP), default=uses[0].node)


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """The weights of one segment, or a slice of one weight."""

    segment: Segment
    weights: tuple[TracedWeight, ...]
    rows: range | None = None
    """Rows of the segment's only weight; None: whole weights."""

    @property
    def offsets(self) -> list[tuple[TracedWeight, int]]:
        """Its weights with their offsets in the slot; empty for a slice of a weight."""
        if self.rows is not None:
            return []
        entries = ((weight, weight.entry) for weight in self.weights)
        return [(w, self.segment.locate(entry.file_index, entry.offset)) for w, entry in entries]

    @property
    def size(self) -> SegmentSize:
        """Its size for the memory plan."""
        segment, names = self.segment, tuple(weight.entry.name for weight in self.weights)
        return SegmentSize(
            segment.name,
            segment.nbytes,
            segment.slot_bytes,
            slice_of=names[0] if self.rows else "",
            weights=names,
            lower_bytes=segment.read_bytes,
        )


def cut(
    weights: Sequence[TracedWeight], largest_bytes: int | None = None, divides_layers: bool = False
) -> list[WeightGroup]:
    """Cut weights, in order of use, at layer boundaries and into pieces of `largest_bytes`.

    None cuts only at layer boundaries. An output head is divided into slices no larger than the
    largest other segment; so are matrices of layers if it `divides_layers`, in slices of
    `largest_bytes`.
    """
    groups: list[list[TracedWeight]] = []
    for weight in weights:
        layer = _layer(weight.entry.name)
        if groups and layer is not None and _layer(groups[-1][-1].entry.name) == layer:
            size = sum(w.entry.nbytes for w in groups[-1]) + weight.entry.nbytes
            if largest_bytes is None or size <= largest_bytes:
                groups[-1].append(weight)
                continue
        groups.append([weight])
    whole = [group for group in groups if not _can_be_sliced(group, divides_layers)]
    sizes = [sum(w.entry.nbytes for w in group) for group in whole]
    least = largest_bytes if largest_bytes and divides_layers else MIN_SLICE_BYTES
    slice_bytes = max([least, *sizes])
    found = []
    for group in groups:
        is_large = group[0].entry.nbytes > slice_bytes
        if is_large and _can_be_sliced(group, divides_layers):
            found += slices(group[0], slice_bytes)
        else:
            found.append(_whole(group))
    return found


def slices(weight: TracedWeight, largest_bytes: int) -> list[WeightGroup]:
    """Slices of a matrix of about `largest_bytes`, in order.

    Each has as many rows as the matrix, modulo ROWS_ALIKE, so that the same kernels multiply it;
    adjacent slices overlap by the surplus rows.
    """
    entry, n_rows = weight.entry, weight.entry.shape[1]
    row_bytes = entry.nbytes // n_rows
    n_over = n_rows % ROWS_ALIKE
    n_slices = -(-entry.nbytes // largest_bytes)
    size = ROWS_ALIKE * -(-n_rows // (n_slices * ROWS_ALIKE))
    found = []
    for begin in range(0, max(1, n_rows - n_over), size):
        rows = range(begin, min(begin + size + n_over, n_rows))
        at, nbytes = entry.offset + begin * row_bytes, len(rows) * row_bytes
        name = f"{entry.name} rows {rows.start:,} to {rows.stop - 1:,}"
        segment = Segment(name, [Extent(entry.file_index, at, nbytes)])
        found.append(WeightGroup(segment, (weight,), rows))
    return found


def join_pinned(
    groups: Sequence[WeightGroup], pinned: frozenset[int]
) -> tuple[list[WeightGroup], frozenset[int]]:
    """Groups and indices of pinned groups, after joining the slices of completely pinned weights.

    llama.cpp itself multiplies such weights.
    """
    streamed = {g.weights[0].address for i, g in enumerate(groups) if g.rows and i not in pinned}
    joined: list[WeightGroup] = []
    kept = set()
    for i, group in enumerate(groups):
        is_joined = group.rows is not None and group.weights[0].address not in streamed
        if is_joined and group.rows and group.rows.start > 0:
            continue
        if i in pinned:
            kept.add(len(joined))
        joined.append(_whole(group.weights) if is_joined else group)
    return joined, frozenset(kept)


def _whole(weights: Sequence[TracedWeight]) -> WeightGroup:
    first, last = weights[0].entry.name, weights[-1].entry.name
    name = first if first == last else f"{first} .. {last.split('.', 2)[-1]}"
    return WeightGroup(segment_of([weight.entry for weight in weights], name), tuple(weights))


def _can_be_sliced(group: Sequence[TracedWeight], in_layers: bool) -> bool:
    first = group[0]
    return len(group) == 1 and first.divisible and (in_layers or _layer(first.entry.name) is None)


def _layer(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "blk" and len(parts) > 2 else None


def segment_of(entries: Sequence[TensorEntry], name: str = "") -> Segment:
    """The segment of some tensors, by default with the name of the first."""
    return Segment(name or entries[0].name, [extent_of(entry) for entry in entries])


def extent_of(entry: TensorEntry) -> Extent:
    return Extent(entry.file_index, entry.offset, entry.nbytes)


def largest_slot(groups: Sequence[WeightGroup]) -> int:
    """Bytes of the largest slot that one of the groups needs."""
    return max(group.segment.slot_bytes for group in groups)
