"""Points llama.cpp's tensors into the slots of the pager's ring while it computes.

llama.cpp calls `cb_eval` for every node before it computes a batch of nodes, and again after each
node for which it returned True. A streamed segment is acquired, and its tensors are pointed into
the slot, at the call before its first node; after its last node it is released, and its tensors
point into the file mapping again. A tensor without a slot reads the mapping, so a missed swap is
slow but never wrong. A sliced matrix (an output head) is multiplied slice by slice, while llama.cpp
skips the product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from edgespec.concurrency.owning import close_all
from edgespec.memory.budget import MemoryPlan
from edgespec.paging.reader import DirectReader, Reader, ReadLimit
from edgespec.paging.store import Store
from edgespec.ports import Progress
from edgespec.registry import ModelRequest
from edgespec.tracing.spans import NO_SPAN, Span, Track
from edgespec.values import PagingStats
from edgespec_runtimes.gguf.context.contexts import ContextShape
from edgespec_runtimes.gguf.context.prompt_buffers import PromptBuffers
from edgespec_runtimes.gguf.kernels.packer import BufferFields, Packer
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.weights.mapped_weights import MappedWeights
from edgespec_runtimes.gguf.weights.packing import packed_fields
from edgespec_runtimes.gguf.weights.paged_experts import Mixture, PagedExperts
from edgespec_runtimes.gguf.weights.row_tables import LOOKUP, RowTable
from edgespec_runtimes.gguf.weights.segments import (
    MATMULS,
    TracedWeight,
    WeightGroup,
    join_pinned,
    segment_of,
)
from edgespec_runtimes.gguf.weights.sliced import SlicedMatrices
from edgespec_runtimes.kit.segmented import Division, SegmentedWeights

POINTER_BYTES = 8


class PagedWeights(SegmentedWeights[WeightGroup]):
    """All weights of a mapped model: pinned, streamed, or looked up by row.

    Constructed before the context, whose `cb_eval` is `callback`; `fill` reads the pinned weights.
    What is pinned can change between passes (`divide`).
    """

    def __init__(
        self, mapped: MappedWeights, request: ModelRequest, plan: MemoryPlan, shape: ContextShape
    ) -> None:
        """`request` has the trace and the limit of reads."""
        header, stop = mapped.header, mapped.stop
        lower = [mapped.nested.path] if mapped.nested else []
        paths = [*header.paths, *lower]
        open_reader = partial(DirectReader, paths, ReadLimit(request.read_limit))
        reader: Reader = open_reader()
        if mapped.nested:
            reader = mapped.nested.checked(reader)
        super().__init__(plan, reader, lambda: stop.is_set, request.trace)
        self._header = header
        weights, mixtures, self._cuts = mapped.traced, mapped.mixtures, mapped.cuts
        self._weights = tuple(weights)
        self._n_batch, n_threads = shape.largest_batch, shape.n_threads
        groups = self._cuts[plan.cut]
        self._stop = stop
        self.buffers: PromptBuffers | None = None
        """The context's compute buffers, if they lend memory."""
        self._packer = Packer()
        self.packed = packed_fields(self._packer, header, groups)
        """Buffer fields of packed tensors by address."""
        self._computing: Span = NO_SPAN
        self.failure: BaseException | None = None
        self.callback = lib.ggml_backend_sched_eval_callback(self.on_node)
        self._on_segment: Callable[[float], None] | None = None

        swapped = {weight.address for group in groups for weight in group.weights}
        swapped |= {weight.address for mixture in mixtures for weight in mixture.weights}
        self.experts = self._paged_experts(open_reader, mixtures, plan.expert_bytes, n_threads)
        self._resident = [w for w in weights if w.address not in swapped and not w.looked_up]
        looked_up = (weight for weight in weights if weight.looked_up)
        self._rows = {weight.address: (weight, self._table(weight)) for weight in looked_up}
        """All tables: files stay open, because their names may be others' later."""
        self.sliced = SlicedMatrices(
            n_threads if any(group.rows for cut in self._cuts for group in cut) else 0,
            self._packer,
            self.packed,
        )
        self._mapped = {w.address: w.pointer.value for w in weights}
        self._plain = {address: BufferFields.of(address) for address in self.packed}
        self._held: set[int] = set()
        self._parked: set[int] = set()
        """Segments that could not be read, whose weights point to arbitrary memory of the ring."""
        self._lookup_op = abi.op_number(LOOKUP)
        self._choice_ops = self.experts.ops if self.experts else frozenset()
        self._use(self._arrange(groups, plan.pinned))

    @property
    def backends(self) -> list[int]:
        """The addresses of the CPU backends that multiply besides the context's own."""
        return [*self.sliced.backends, *([self.experts.backend] if self.experts else [])]

    @property
    def used_share(self) -> float:
        """Share of the paged experts that a token uses; 1 without paged experts."""
        experts = self.experts.cache.stats if self.experts else None
        return experts.used / experts.experts if experts else 1.0

    @property
    def stores(self) -> Sequence[Store]:
        return [*super().stores, *((self.experts.cache,) if self.experts else ())]

    @property
    def stats(self) -> PagingStats:
        return replace(super().stats, experts=self.experts.cache.stats if self.experts else None)

    @property
    def tensors(self) -> dict[str, int]:
        """Addresses of the tensors by name."""
        return {weight.entry.name: weight.address for weight in self._weights}

    def fill(self, progress: Progress | None) -> None:
        """Read the pinned weights and start streaming. Raises WeightReadError and Cancelled."""
        small = [weight.entry for weight in self._resident]
        segment = segment_of(small, "small tensors") if small else None
        resident = [WeightGroup(segment, tuple(self._resident))] if segment else []
        self._fill([*resident, *self._arranged.pinned_groups], progress)

    def begin_pass(self, n_rows: int, on_segment: Callable[[float], None] | None = None) -> None:
        """Call before every llama_decode."""
        self.failure = None
        if self.buffers:
            self.buffers.begin_pass(n_rows)
        self.settle(self._is_stopped)
        self._on_segment = on_segment

    def end_pass(self) -> None:
        """Point all weights back to the mapping; call after every llama_decode."""
        if self.buffers:
            self.buffers.end_pass()
        self.sliced.end_pass()
        for index in list(self._held):
            self._restore(index)
        for index in self._parked:
            self._release(index)
        self._parked.clear()
        if self.experts:
            self.experts.end_pass()
        self._computing.end()
        for weight, _ in self._tables.values():
            weight.pointer.value = self._mapped[weight.address]
        self.passes += 1

    def close(self) -> None:
        close_all(
            super().close,
            self.sliced.close,
            self._packer.close,
            *((self.experts.close,) if self.experts else ()),
            *(rows.close for _, rows in self._rows.values()),
        )

    def _pin(self, group: WeightGroup, stopped: Callable[[], bool]) -> None:
        base = self._pinned.load(group.segment, self._reader, stopped)
        for weight, offset in group.offsets:
            self._put(weight, base + offset)
        if group.rows is not None:
            self.sliced.keep(group, base)

    def _free_stores(self, wanted: MemoryPlan) -> None:
        super()._free_stores(wanted)
        if self.experts:
            self.experts.cache.resize(wanted.expert_bytes)

    def _groups_of(self, wanted: MemoryPlan) -> Sequence[WeightGroup]:
        return self._cuts[wanted.cut]

    def _arrange(
        self, groups: Sequence[WeightGroup], pinned: frozenset[int]
    ) -> Division[WeightGroup]:
        return Division(*join_pinned(groups, pinned))

    def _let_go(self, group: WeightGroup) -> None:
        for weight, _ in group.offsets:
            self._point_to_mapping(weight)
        self.sliced.forget(group)
        self._pinned.drop(group.segment)

    def _find_places(self) -> None:
        groups, streamed = self._arranged.groups, self._arranged.streamed
        self._streamed, self._swaps = streamed, [group.offsets for group in streamed]
        whole = {i: group for i, group in enumerate(streamed) if group.rows is None}
        self._segment_of = {w.address: i for i, group in whole.items() for w in group.weights}
        self._last_of = {group.weights[-1].address: i for i, group in whole.items()}
        # llama.cpp must compute before it continues with callbacks after the last weights of each
        # streamed segment, so that its slot is freed, and after the last ones before it, so that
        # waiting for it does not delay earlier nodes
        self._stop_after = set(self._last_of)
        ordered = [weight.address for group in groups for weight in group.weights]
        for address, following in pairwise(ordered):
            if self._segment_of.get(following, -1) != self._segment_of.get(address, -1):
                self._stop_after.add(address)
        self.sliced.arrange(groups, streamed)
        whole_groups = (group for group in self._arranged.pinned_groups if group.rows is None)
        pinned = {weight.address for group in whole_groups for weight in group.weights}
        self._tables = {
            address: one for address, one in self._rows.items() if address not in pinned
        }
        matmuls = map(abi.op_number, MATMULS if self._streamed or self.experts else ())
        self._ops = self._choice_ops.union((*matmuls, self._lookup_op))

    def _table(self, weight: TracedWeight) -> RowTable:
        path = self._header.paths[weight.entry.file_index]
        return RowTable(weight.entry, path, self._n_batch * weight.rows_per_token)

    def _paged_experts(
        self,
        open_reader: Callable[[], Reader],
        mixtures: Sequence[Mixture],
        nbytes: int,
        n_threads: int,
    ) -> PagedExperts | None:
        if not mixtures:
            return None
        from edgespec.paging.expert_cache import ExpertCache

        layers = [mixture.layer for mixture in mixtures]
        cache = ExpertCache(layers, open_reader(), nbytes, trace=self._trace)
        return PagedExperts(mixtures, cache, self._stop, n_threads)

    def on_node(self, node: int, ask: bool, _: Any = None) -> bool:
        """Implement llama.cpp's `cb_eval`; exceptions are stored and raised after the pass."""
        try:
            return self._before(node) if ask else self._after(node)
        except BaseException as exc:  # noqa: BLE001 - it cannot pass through llama.cpp
            self.failure = exc
            self._stop.is_set = True
            return True

    def _before(self, node: int) -> bool:
        op = ctypes.c_int.from_address(node + abi.OP_OFFSET).value
        if op not in self._ops:
            return False
        address = ctypes.c_uint64.from_address(node + abi.SRC_OFFSET).value
        if op == self._lookup_op:
            if address in self._tables:
                self._look_up(node, address)
                return True
            return False
        if op in self._choice_ops:
            return self.experts is not None and self.experts.is_choice(node)
        if self.experts and self.experts.use(address, node):
            return True
        if address in self.sliced.addresses:
            self.sliced.skip(node, address)
            return True
        index = self._segment_of.get(address)
        if index is not None and index not in self._held:
            self._point(index)
        return address in self._stop_after

    def _after(self, node: int) -> bool:
        if self.experts and self.experts.multiply(node):
            return True
        if self.sliced.multiply(self._point, self._restore):
            return True
        op = ctypes.c_int.from_address(node + abi.OP_OFFSET).value
        address = ctypes.c_uint64.from_address(node + abi.SRC_OFFSET).value
        if op in self._choice_ops and self.experts:
            self.experts.bring(node)
        elif op == self._lookup_op:
            self._tables[address][0].pointer.value = self._mapped[address]
        elif address in self._last_of:
            self._restore(self._last_of[address])
        return True

    def _look_up(self, node: int, address: int) -> None:
        """Point a lookup table to its memory and read the rows that the node needs.

        If that fails, the pass is aborted; llama.cpp still computes the node, on zeros.
        """
        weight, rows = self._tables[address]
        weight.pointer.value = rows.address
        index = ctypes.c_uint64.from_address(node + abi.SRC_OFFSET + POINTER_BYTES).value
        rows.fetch(abi.values_of(index, np.int32).ravel().tolist())

    def _point(self, index: int) -> int | None:
        """Acquire a segment and point its weights to it; returns its address, None once
        cancelled."""
        assert self.pager is not None
        self._computing.end()
        try:
            base = self.pager.acquire(index)
        except BaseException:
            self._park(index)
            raise
        if base is None:
            self._stop.is_set = True
            self._park(index)
            return None
        self._held.add(index)
        self._computing = self._trace.span(Track.TARGET, "compute").note(segment=index)
        for weight, offset in self._swaps[index]:
            self._put(weight, base + offset)
        if self._on_segment:
            self._on_segment((index + 1) / len(self._streamed))
        return base

    def _restore(self, index: int) -> None:
        if index not in self._held:
            return
        self._release(index)
        self._held.discard(index)
        self._computing.end()
        assert self.pager is not None
        self.pager.release(index)

    def _park(self, index: int) -> None:
        """Point the weights of an aborted pass to the ring instead of the file mapping.

        llama.cpp computes a node before it checks the abort flag, and reading a mapping past the
        end of a truncated file would crash the process.
        """
        assert self.pager is not None
        self._parked.add(index)
        for weight, _ in self._swaps[index]:
            weight.pointer.value = self.pager.ring_address

    def _release(self, index: int) -> None:
        for weight, _ in self._swaps[index]:
            self._point_to_mapping(weight)

    def _point_to_mapping(self, weight: TracedWeight) -> None:
        weight.pointer.value = self._mapped[weight.address]
        if fields := self._plain.get(weight.address):
            fields.write_to(weight.address)

    def _put(self, weight: TracedWeight, address: int) -> None:
        """Point a weight to the address it was read to, and pack it if needed.

        The I/O threads do not pack, because ggml's threads occupy the cores meanwhile.
        """
        weight.pointer.value = address
        if fields := self.packed.get(weight.address):
            self._packer.pack(address, weight.entry.type.code, *weight.entry.shape)
            fields.write_to(weight.address)


def load_paged(
    mapped: MappedWeights,
    request: ModelRequest,
    plan: MemoryPlan,
    shape: ContextShape,
    progress: Progress | None,
) -> tuple[loading.Model, PagedWeights]:
    """The mapped model and its weights, of which the pinned ones are read; both are the caller's.

    Raises WeightReadError and Cancelled.
    """
    weights = PagedWeights(mapped, request, plan, shape)
    model = mapped.take_model()
    try:
        weights.fill(progress)
    except BaseException:
        close_all(weights.close, model.close)
        raise
    return model, weights
