"""Plan rows of a decoder, for the process's memory and a GPU's.

Arithmetic on the sizes of the decoder and its placement; measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.memory.budget import LOADING, MemoryRow, SegmentSize
from edgespec.memory.needs import BatchNeeds
from edgespec.ports.kept_features import feature_bytes
from edgespec.values import ModelInfo
from edgespec_runtimes.onnx.files.source import Source
from edgespec_runtimes.onnx.memory import needs
from edgespec_runtimes.onnx.memory.placement import GpuNeeds
from edgespec_runtimes.onnx.prepare.deployment import Deployment
from edgespec_runtimes.onnx.weights.packing import is_packed


def fixed_rows(owner: str, info: ModelInfo, cache_bytes: int) -> tuple[MemoryRow, ...]:
    """Rows that do not depend on the placement of the weights."""
    tokens = f"{info.n_ctx} tokens"
    if info.n_slots > 1:
        tokens = f"{info.n_slots} texts of {tokens}"
    return (MemoryRow(owner, f"KV cache ({tokens})", info.n_slots * cache_bytes),)


def batch_needs(
    owner: str, info: ModelInfo, sizes: needs.BatchSizes, n_layers: int = 0, n_values: int = 0
) -> BatchNeeds:
    """Needs of a batch size on the CPU, also for operators that a GPU leaves to the CPU.

    A head reads the inputs of `n_layers` layers, each of `n_values`.
    """
    others = MemoryRow(owner, "compute buffers of further sessions", sizes.other_sessions_bytes)
    buffers = MemoryRow(owner, "compute buffers", sizes.compute_bytes)
    # onnxruntime's output, and the engine's copy
    logits_bytes = 2 * 4 * sizes.max_nodes * info.n_vocab
    logits = MemoryRow(owner, f"logits ({sizes.max_nodes} nodes)", logits_bytes)
    buffers_and_results = [buffers, logits]
    if n_layers:
        # onnxruntime's outputs of a batch, and their copy
        n_rows = sizes.tokens_per_pass + 2 * max(sizes.chunk, sizes.tree_tokens)
        nbytes = feature_bytes(n_layers, n_values, n_rows, 2 * sizes.max_nodes)
        buffers_and_results.append(MemoryRow(owner, f"features ({n_layers} layers)", nbytes))
    return BatchNeeds(sizes.chunk, tuple(buffers_and_results), (others,), sizes.max_nodes)


def resident_rows(
    owner: str, deployment: Deployment, source: Source
) -> tuple[MemoryRow, ...] | None:
    """Rows of a session with all weights; None if a GPU has room for only some of them."""
    weights = source.weights.values()
    if deployment.placement.is_whole:
        # weights are mapped one after another, and copied through a buffer of the driver
        largest = max((weight.nbytes for weight in weights), default=0)
        return (MemoryRow(owner, LOADING, 2 * largest),)
    if deployment.placement.uses_gpu:
        return None
    rows = (
        MemoryRow(owner, "weights", sum(needs.resident_bytes(weight) for weight in weights)),
        MemoryRow(owner, LOADING, needs.loading_bytes(source)),
    )
    if deployment.device.is_cpu:
        return rows
    return (*rows, MemoryRow(owner, f"copies of {deployment.device.label}", source.weight_bytes))


def paged_rows(deployment: Deployment, source: Source) -> tuple[MemoryRow, ...]:
    if source.unbound:
        return ()
    rows = (MemoryRow("target", "norms and other small tensors", deployment.fitted.small_bytes),)
    if deployment.placement.uses_gpu:
        kept = (group.segment.slot_bytes for group in deployment.on_gpu)
        return (*rows, MemoryRow("target", "a part on its way to the GPU", max(kept, default=0)))
    cut = deployment.fitted.cut
    packed = max(
        (
            group.segment.nbytes
            for group in deployment.fitted.groups
            if is_packed(cut.graphs[cut.pieces[group.piece].graph])
        ),
        default=0,
    )
    converted = needs.converted_bytes(cut, source)
    return (
        # one piece computes while the next one is packed; the rest is the allocator's overhead
        MemoryRow("target", "packed weights of streamed layers", 4 * packed),
        *rows,
        MemoryRow("target", "weights in single precision", converted),
    )


def cuts(deployment: Deployment, source: Source) -> tuple[tuple[SegmentSize, ...], ...]:
    """The only segmentation of the weights, one segment per piece; empty if it cannot be paged."""
    if deployment.placement.is_whole or source.unbound:
        return ()
    segments = [group.segment for group in deployment.in_memory]
    return (tuple(SegmentSize(s.name, s.nbytes, s.slot_bytes) for s in segments),)


def gpu_rows(owner: str, deployment: Deployment, gpu_needs: GpuNeeds) -> Sequence[MemoryRow]:
    """Rows of the GPU's memory; empty if the CPU computes."""
    buffers = "compute buffers and cache in use"
    if deployment.placement.is_whole:
        buffer_bytes = gpu_needs.whole_bytes - gpu_needs.weight_bytes
        return (
            MemoryRow(owner, "weights", gpu_needs.weight_bytes),
            MemoryRow(owner, buffers, buffer_bytes),
        )
    if not deployment.placement.uses_gpu:
        return ()
    kept = f"weights of {len(deployment.placement.kept)} of {len(deployment.fitted.groups)} parts"
    return (
        MemoryRow(owner, kept, deployment.placement.kept_bytes + deployment.fitted.small_bytes),
        MemoryRow(owner, "room for parts that are copied there", deployment.placement.room_bytes),
        MemoryRow(owner, buffers, gpu_needs.session_bytes),
    )
