"""The weights that the graph reads, in order of use, and their segments.

Reads llama.cpp's own graph, node by node, before anything is computed. Moves no weight: `weights`
fills the segments.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib

from edgespec.errors import EdgespecError
from edgespec.paging.reader import BLOCK_BYTES, READ_BYTES, Extent, Segment
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama import abi, contexts, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.row_tables import LOOKUP, n_rows_named

SMALL_BYTES = BLOCK_BYTES
"""Size of a matrix below which it stays in memory, like norms and biases."""
MATMULS = ("MUL_MAT", "MUL_MAT_ID")
MIN_SLICE_BYTES = READ_BYTES
"""Least size of a slice: each is a read, and a stop of the computation."""
ROWS_ALIKE = 64
"""Granularity of rows in slices, a multiple of 4, 8 and 16: ggml chooses kernels by the remainder
of a matrix's rows."""


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """The node that holds the experts which a layer's tokens chose: int32 [n_used, n_tokens]."""

    name: str
    """The node's name, which no other node has and which is the same in every graph."""
    op: int
    n_used: int


@dataclass(frozen=True, slots=True)
class TracedWeight:
    """A tensor of the file that the graph reads, and where llama.cpp keeps it."""

    entry: TensorEntry
    address: int
    """Address of the ggml_tensor."""
    swappable: bool
    """True if one matrix product reads it, directly: its pointer may change between passes."""
    rows_per_token: int
    """Rows of a table that are looked up for each token; 0 for a weight that is no table."""
    choice: ExpertChoice | None = None
    """The choice among stacked experts, of which a product reads the chosen ones."""
    divisible: bool = False
    """True if its product can be computed for some of its rows at a time."""

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
        """Bytes from one of a stack of matrices to the next, to read and to write."""
        return ctypes.c_size_t.from_address(self.address + abi.STACK_STRIDE_OFFSET)


@dataclass(frozen=True, slots=True)
class _Use:
    """One node of the graph that reads a weight."""

    node: int
    op: str
    direct: bool
    """True if the weight is the node's first operand, through no view."""
    n_rows: int = 0
    """Rows that it looks up; 0 if they are known only when the graph is computed."""
    chosen_by: int = 0
    """The node that holds the experts which a MUL_MAT_ID reads."""


def trace_weights(model: loading.Model, header: GgufFile, stop: AbortFlag) -> list[TracedWeight]:
    """The weights that a pass reads, in the order of the products that read them. Computes nothing.

    A table that is looked up at the start and is the output head too counts as the head.

    llama.cpp asks about the whole graph before it computes a node; the abort flag is up, so that
    the decode ends there.
    """
    entries = {tensor.name: tensor for tensor in header.tensors}
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
            choices[chosen_by] = _choice(chosen_by)
        for position, source in enumerate(tensor.src):
            address, through_view = source, False
            while address and (parent := abi.GgmlTensor.from_address(address).view_src):
                address, through_view = parent, True
            if address and abi.GgmlTensor.from_address(address).name.decode() in entries:
                direct = position == 0 and not through_view
                use = _Use(n_nodes, op, direct, n_rows, chosen_by)
                uses.setdefault(address, []).append(use)
        return False

    shape = contexts.ContextShape(n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)
    stop.set()
    context = contexts.new_context(model, shape, watch, stop)
    try:
        tokens = (ctypes.c_int32 * 1)(0)
        lib.llama_decode(context, lib.llama_batch_get_one(tokens, 1))
    finally:
        stop.clear()
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
    """Rows looked up for each token: 0 unless the table is looked up directly, by known numbers,
    and otherwise at most multiplied. Other nodes need all of it."""
    lookups = [use for use in uses if use.op == LOOKUP]
    if len(entry.shape) != 2 or entry.nbytes < SMALL_BYTES:
        return 0
    if not all(use.direct and use.n_rows for use in lookups):
        return 0
    if not all(use.direct and use.op in (LOOKUP, *MATMULS) for use in uses):
        return 0
    return sum(use.n_rows for use in lookups)


def _choice(node: int) -> ExpertChoice:
    tensor = abi.GgmlTensor.from_address(node)
    return ExpertChoice(tensor.name.decode(), tensor.op, tensor.ne[0])


def _first_product(uses: Sequence[_Use]) -> int:
    """The node that first reads a weight, other than to look up rows if there is one."""
    return min((use.node for use in uses if use.op != LOOKUP), default=uses[0].node)


def in_host_memory(tensor: int) -> bool:
    """False for a tensor that was copied to a device while loading."""
    return abi.buffer_is_host(abi.GgmlTensor.from_address(tensor).buffer)


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """The weights of one segment, or a slice of one weight."""

    segment: Segment
    weights: tuple[TracedWeight, ...]
    rows: range | None = None
    """Rows of the only weight that the segment holds; None: all of all weights."""


def cut(weights: Sequence[TracedWeight], largest_bytes: int | None = None) -> list[WeightGroup]:
    """Cut weights, in order of use, at layer boundaries and wherever a piece would exceed a size.

    `largest_bytes` None: whole layers. A layer's tensor is never divided. What belongs to no layer,
    an output head, is divided into slices no larger than the largest of the other segments.
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
    sizes = [sum(w.entry.nbytes for w in g) for g in groups if not _can_be_sliced(g)]
    slice_bytes = max([MIN_SLICE_BYTES, *sizes])
    found = []
    for group in groups:
        if _can_be_sliced(group) and group[0].entry.nbytes > slice_bytes:
            found += slices(group[0], slice_bytes)
        else:
            found.append(_whole(group))
    return found


def slices(weight: TracedWeight, largest_bytes: int) -> list[WeightGroup]:
    """A matrix in slices of about a size, in order. Each has as many rows as the matrix, modulo
    ROWS_ALIKE, and is multiplied by the same kernels: neighbours share the rows that are over."""
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
    """Groups and indices of pinned ones, with one group for slices of a weight that all stay in
    memory: llama.cpp multiplies with that by itself."""
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
    segment = Segment(name, [extent_of(weight) for weight in weights])
    return WeightGroup(segment, tuple(weights))


def _can_be_sliced(group: Sequence[TracedWeight]) -> bool:
    return len(group) == 1 and group[0].divisible and _layer(group[0].entry.name) is None


def _layer(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "blk" and len(parts) > 2 else None


def extent_of(weight: TracedWeight) -> Extent:
    return Extent(weight.entry.file_index, weight.entry.offset, weight.entry.nbytes)
