"""Plan rows of a decoder, for the process's memory and a GPU's.

Arithmetic on the sizes of the decoder; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from edgespec.memory.budget import LOADING, MemoryRow
from edgespec.memory.needs import BatchNeeds
from edgespec.memory.pinning import SegmentSize
from edgespec.values import ModelInfo
from edgespec_runtimes.onnx.files.source_model import StoredWeight
from edgespec_runtimes.onnx.memory import decoder_needs
from edgespec_runtimes.onnx.ort.devices import Device
from edgespec_runtimes.onnx.prepare.deployment import Deployment
from edgespec_runtimes.onnx.prepare.fitting import FittedDecoder
from edgespec_runtimes.onnx.prepare.measuring import MeasuredOnnx, SessionSize
from edgespec_runtimes.onnx.weights.exchanging import single_pieces
from edgespec_runtimes.onnx.weights.packed import is_packed

GRAPH_COPIES = 4
"""Bytes that onnxruntime keeps per byte of a serialised graph; 3 to 5 were measured."""

GRAPH_COPIES_OPTIMISED = 20
"""Such bytes while it optimises the graph; 15 to 19 were measured."""

PACKED_COPIES = 2
"""Most bytes that packing takes besides, per byte that stays packed; 1.5 were measured."""

PACKED_SURPLUS = 0.5
"""Most bytes by which packed weights exceed the stored ones, per byte: 0.47 at accuracy level 4,
0.08 at level 1. Used where nothing was measured."""

UNCERTAINTY = 0.03
"""Share by which the sum of measured sessions may fall short of one session of all pieces."""


def fixed_rows(owner: str, info: ModelInfo, cache_bytes: int) -> tuple[MemoryRow, ...]:
    """Rows that do not depend on where the weights are."""
    tokens = f"{info.n_ctx} tokens"
    if info.n_slots > 1:
        tokens = f"{info.n_slots} texts of {tokens}"
    return (_late(owner, f"KV cache ({tokens})", info.n_slots * cache_bytes),)


def library_rows(device: Device) -> tuple[MemoryRow, ...]:
    """The row of the device's libraries, which both models share."""
    row = MemoryRow("process", "GPU library", device.host_bytes)
    return (row,) if device.host_bytes else ()


def batch_needs(
    owner: str,
    info: ModelInfo,
    sizes: decoder_needs.BatchSizes,
) -> BatchNeeds:
    """Needs of a batch size on the CPU, also for operators that a GPU leaves to the CPU."""
    further_bytes = int((1 + decoder_needs.ARENA_SHARE) * sizes.other_sessions_bytes)
    others = _late(owner, "compute buffers of further sessions", further_bytes)
    buffer_bytes = int((1 + decoder_needs.ARENA_SHARE) * sizes.compute_bytes)
    buffers = _late(owner, "compute buffers", buffer_bytes)
    # onnxruntime's output, and the engine's copy
    logits_bytes = 2 * 4 * sizes.max_nodes * info.n_vocab
    logits = _late(owner, f"logits ({sizes.max_nodes} nodes)", logits_bytes)
    return BatchNeeds(sizes.chunk, (buffers, logits), (others,), sizes.max_nodes)


def resident_rows(
    owner: str, deployment: Deployment, measured: MeasuredOnnx
) -> tuple[MemoryRow, ...]:
    """Rows of a session with all weights. If nothing was measured, sizes are computed."""
    fitted, sizes = deployment.fitted, measured.sizes
    if deployment.max_bytes:
        # weights are mapped one after another, and copied through a buffer of the driver
        largest = max((weight.nbytes for weight in fitted.source.weights.values()), default=0)
        return (MemoryRow(owner, LOADING, 2 * largest),)
    others = unmeasured(fitted, sizes)
    kept = [size.kept_bytes for size in sizes]
    kept.append(sum(map(decoder_needs.resident_bytes, others)))
    if sizes:
        kept.append(GRAPH_COPIES * fitted.model.ByteSize() + int(UNCERTAINTY * sum(kept)))
        loading = _loading_bytes(fitted, measured, others)
    else:
        packed_bytes = sum(map(decoder_needs.resident_bytes, _packed(fitted, others)))
        kept.append(int(PACKED_SURPLUS * packed_bytes))
        loading = decoder_needs.loading_bytes(others)
    dequantised = sum(fitted.dequantised)
    found = (
        MemoryRow(owner, "weights", sum(kept)),
        _late(owner, "weights in single precision", dequantised),
        MemoryRow(owner, LOADING, loading),
    )
    return tuple(row for row in found if row.nbytes)


def _packed(fitted: FittedDecoder, weights: Sequence[StoredWeight]) -> list[StoredWeight]:
    """Those of `weights` that onnxruntime packs."""
    cut = fitted.cut
    pieces = (piece for piece in cut.pieces if is_packed(cut.graphs[piece.graph]))
    names = {name for piece in pieces for _, name in piece.weights}
    return [weight for weight in weights if weight.name in names]


def _loading_bytes(
    fitted: FittedDecoder, measured: MeasuredOnnx, kept: Sequence[StoredWeight]
) -> int:
    """Most temporary bytes while all pieces are loaded; `kept` are weights that stay afterwards.

    onnxruntime computes with weights, and makes single precision of halves, before it packs any:
    pieces without such have taken nothing then.
    """
    weights, kept_names = fitted.source.weights, {weight.name for weight in kept}
    early = decoder_needs.folded_weights(fitted.model)
    early |= {name for name, one in weights.items() if one.kind == TensorProto.FLOAT16}
    sizes, packing_bytes, folding = measured.sizes, [], []
    total_bytes = sum(size.kept_bytes for size in sizes)
    largest = max(sizes, key=lambda size: size.peak_bytes)
    for piece, size in zip(fitted.cut.pieces, sizes, strict=True):
        names = {name for _, name in piece.weights}
        kept_bytes = sum(weights[name].nbytes for name in names & kept_names)
        loading_bytes = size.loading_bytes - kept_bytes
        if names & early:
            folding.append(size)
            loading_bytes = min(loading_bytes, PACKED_COPIES * size.kept_bytes)
            if size == largest:  # others take the rest of theirs later
                later = (1 - measured.taken_share) * (total_bytes - size.kept_bytes)
                loading_bytes = max(0, loading_bytes - int(later))
        packing_bytes.append(loading_bytes)
    if not folding:
        return max(packing_bytes)
    folded_bytes = max(size.loading_bytes for size in folding)
    folded_bytes += sum(size.kept_bytes for size in folding)
    folded_bytes += int(GRAPH_COPIES_OPTIMISED * fitted.model.ByteSize())
    return max(*packing_bytes, folded_bytes - total_bytes)


def unmeasured(fitted: FittedDecoder, sizes: Sequence[SessionSize]) -> list[StoredWeight]:
    """Weights of a whole session that are in no measured piece.

    A table that is looked up by column is kept beside what the head has packed of it.
    """
    cut, weights = fitted.cut, fitted.source.weights
    if sizes:
        return [weights[name] for name in dict.fromkeys(table for _, table in cut.columns)]
    kinds = fitted.fed_kinds
    fed = {table for name, table in cut.embeddings if name in kinds}
    read = {name for piece in cut.pieces for _, name in piece.weights}
    return [weight for name, weight in weights.items() if name in read or name not in fed]


def paged_rows(deployment: Deployment, measured: MeasuredOnnx) -> tuple[MemoryRow, ...]:
    fitted = deployment.fitted
    if deployment.max_bytes or fitted.source.unbound:
        return ()
    small = MemoryRow("target", "norms and other small tensors", fitted.small_bytes)
    converted = decoder_needs.converted_bytes(
        fitted.model, fitted.cut, fitted.source, fitted.dequantised
    )
    sessions = MemoryRow("target", "sessions", deployment.sessions_bytes)
    rows = (small, sessions, _late("target", "weights in single precision", converted))
    if not fitted.layouts:
        packed_bytes = _packed_bytes(fitted, measured.sizes)
        return (_late("target", "packed weights of streamed layers", packed_bytes), *rows)
    return (*_exchange_rows(fitted, measured), *rows)


def _exchange_rows(fitted: FittedDecoder, measured: MeasuredOnnx) -> Iterator[MemoryRow]:
    """Rows of sessions that exchange constants, and of packed pieces that stay."""
    exchanged = [exchange.size for exchange in measured.exchanges.values()]
    singles = [measured.sizes[i] for i in single_pieces(fitted.cut, fitted.layouts)]
    packed_bytes = sum(size.kept_bytes for size in exchanged)
    yield MemoryRow("target", "packed weights of streamed layers", packed_bytes)
    if singles:
        single_bytes = sum(size.kept_bytes for size in singles)
        yield MemoryRow("target", "packed weights of other parts", single_bytes)
    # these are created before any segment is pinned or streamed, and then the pinned ones
    slot_bytes = max(group.segment.slot_bytes for group in fitted.groups)
    first = max(size.loading_bytes for size in (*exchanged, *singles)) - slot_bytes
    graphs = {group.piece: fitted.cut.pieces[group.piece].graph for group in fitted.groups}
    pieces = (piece for piece, graph in graphs.items() if graph in fitted.layouts)
    pinned = max((measured.sizes[piece].loading_bytes for piece in pieces), default=0)
    yield MemoryRow("target", LOADING, max(first, pinned))


def _packed_bytes(fitted: FittedDecoder, sizes: Sequence[SessionSize]) -> int:
    """Bytes of packed weights besides the slots: each piece is packed before it computes."""
    cut = fitted.cut
    private = []
    for group in fitted.groups:
        graph = cut.pieces[group.piece].graph
        if not is_packed(cut.graphs[graph]):
            private.append(0)
        elif sizes:
            size = sizes[group.piece]
            private.append(max(size.private_bytes, size.peak_bytes - group.segment.nbytes))
        else:
            private.append(2 * group.segment.nbytes)
    return max(private, default=0)


def cuts(
    deployment: Deployment, sizes: Sequence[SessionSize]
) -> tuple[tuple[SegmentSize, ...], ...]:
    """The only segmentation of the weights, one segment per piece; empty if it cannot be paged.

    A pinned segment of packed weights takes what its session keeps.
    """
    fitted = deployment.fitted
    if deployment.max_bytes or fitted.source.unbound:
        return ()
    cut, segments = fitted.cut, []
    for group in fitted.groups:
        graph, taken = cut.pieces[group.piece].graph, group.segment.slot_bytes
        if is_packed(cut.graphs[graph]):
            computed = int((1 + PACKED_SURPLUS) * taken)
            taken = max(taken, sizes[group.piece].kept_bytes if sizes else computed)
        segments.append(SegmentSize(group.segment.name, group.segment.nbytes, taken))
    return (tuple(segments),)


def _late(owner: str, what: str, nbytes: int) -> MemoryRow:
    """A row of memory that runs take, and loading does not."""
    return MemoryRow(owner, what, nbytes, is_late=True)
