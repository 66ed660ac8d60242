"""Predicts which tensors llama.cpp will place on devices.

The rule is that of `llama_model_base::load_tensors`: the last layers, with the output head counted
as one. With RPC servers, the head stays in this process. `MappedWeights` checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.errors import BudgetError, setting
from edgespec.memory.budget import MIB, MemoryRow
from edgespec_runtimes.gguf.context.contexts import ContextSizes
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.layout import EMBEDDINGS, OUTPUT
from edgespec_runtimes.gguf.llama import ggml, gpu
from edgespec_runtimes.gguf.llama.loading import NOWHERE, LayerPlacement
from edgespec_runtimes.gguf.llama.rpc import ServerMemory
from edgespec_runtimes.gguf.weights.segments import TracedWeight

STAGING_BYTES = 4 << 20
"""Bytes of the pinned buffers for uploads; on devices without them, each tensor is read whole and
then copied."""
SERVER_SHARE = 0.05
"""Share of a server's free memory left for the graphs that are sent to it."""
_LAYER = re.compile(r"blk\.(\d+)\.")
_AFTER_LAYERS = re.compile(r"output(_norm)?\.")
_ALL_LAYERS = "rope_"
"""Prefix of tensors that all layers read, which are placed with the first one."""


@dataclass(frozen=True, slots=True)
class Offloading:
    """The part of a model that is placed on devices: GPUs or RPC servers."""

    names: frozenset[str] = frozenset()
    """Names of the tensors on devices."""
    placement: LayerPlacement = NOWHERE
    nbytes: int = 0
    """Bytes of these tensors."""
    notes: tuple[str, ...] = ()
    """Sentences about the layers on each server."""
    has_cache: bool = False
    """True if the whole KV cache is on devices; each layer's cache is placed with the layer."""
    has_own_memory: bool = True
    """False for a GPU that shares the process's memory."""
    loading_bytes: int = 0
    """Most bytes of these weights in the process's memory while loading."""

    @property
    def where(self) -> str:
        """Names of the devices for messages; empty if none is used."""
        if not self.names:
            return ""
        return ", ".join(self.placement.servers) or ", ".join(map(ggml.device_name, gpu.find_all()))

    def staying(self, weights: Sequence[TracedWeight]) -> list[TracedWeight]:
        """The weights that remain in the process's memory.

        They include embeddings tied to an output head on the GPU, where it is placed first, which
        is a copy.
        """
        staying = [weight for weight in weights if weight.entry.name not in self.names]
        if self.placement.servers or not self.placement.n_layers:
            return staying
        return [replace(w, swappable=False) if w.looked_up else w for w in staying]


def offloading(header: GgufFile, n_gpu_layers: int) -> Offloading:
    """The tensors that GPUs get, without those of types that they cannot multiply."""
    if not n_gpu_layers:
        return Offloading()
    n_layers = _n_layers(header)
    first = max(0, n_layers + 1 - n_gpu_layers)
    refused = _refused(header)
    offloaded = [
        tensor
        for tensor in header.tensors
        if first <= _layer(tensor, n_layers) and tensor.type.code not in refused
    ]
    tied = header.tensors_by_name.get(EMBEDDINGS) if OUTPUT not in header.tensors_by_name else None
    return Offloading(
        names=frozenset(tensor.name for tensor in offloaded),
        placement=LayerPlacement(n_gpu_layers),
        nbytes=sum(tensor.nbytes for tensor in offloaded) + (tied.nbytes if tied else 0),
        has_cache=first == 0,
        has_own_memory=all(gpu.has_own_memory(device) for device in gpu.find_all()),
        loading_bytes=max([STAGING_BYTES, *(tensor.nbytes for tensor in offloaded)]),
    )


def to_servers(
    header: GgufFile,
    servers: Sequence[ServerMemory],
    max_layers: int | None,
    kv_bytes: int,
    compute_bytes: int,
) -> Offloading:
    """Place as many of the last layers on RPC servers as fit, or as were requested.

    A layer is placed with its KV cache, and every server needs compute buffers as large as this
    process. Raises BudgetError if no layer fits, or fewer than requested.
    """
    n_layers = _n_layers(header)
    sizes = [kv_bytes // n_layers] * n_layers
    for tensor in header.tensors:
        if 0 <= (layer := _layer(tensor, n_layers)) < n_layers:
            sizes[layer] += tensor.nbytes
    held: list[tuple[ServerMemory, range, int]] = []  # server, its layers and their bytes
    first = n_layers
    for server in reversed(servers):
        room = int((1 - SERVER_SHARE) * server.free_bytes)
        end, taken = first, compute_bytes
        while first and n_layers - first != max_layers and taken + sizes[first - 1] <= room:
            first -= 1
            taken += sizes[first]
        if first < end:
            held.insert(0, (server, range(first, end), taken))
    n_placed = n_layers - first
    if not n_placed or (max_layers is not None and n_placed < min(max_layers, n_layers)):
        free = ", ".join(f"{s.free_bytes / MIB:.0f} at {s.name}" for s in servers)
        raise BudgetError(
            f"the RPC servers have memory for {n_placed} layers: each layer takes "
            f"{max(sizes) / MIB:.0f} MiB, each server {compute_bytes / MIB:.0f} for computing, and "
            f"free are, in MiB, {free}: give `edgespec rpc-server` a larger --memory-budget, name "
            + (setting.n_gpu_layers(n_placed) if n_placed else f"more or lower {setting.ctx_size}")
        )
    offloaded = [t for t in header.tensors if first <= _layer(t, n_layers) < n_layers]
    notes = (
        f"{server.name} holds layers {layers.start} to {layers.stop - 1} with their keys and "
        f"values: {taken / MIB:.0f} of the {server.free_bytes / MIB:.0f} MiB that it has free; "
        f"a round trip takes {1e3 * server.round_trip_s:.1f} ms"
        for server, layers, taken in held
    )
    return Offloading(
        names=frozenset(tensor.name for tensor in offloaded),
        placement=LayerPlacement(
            n_placed + 1,
            tuple(server.name for server, _, _ in held),
            tuple(len(layers) for _, layers, _ in held),
        ),
        nbytes=sum(tensor.nbytes for tensor in offloaded),
        notes=tuple(notes),
        has_cache=first == 0,
        # llama.cpp copies a tensor into a message
        loading_bytes=2 * max(tensor.nbytes for tensor in offloaded),
    )


def place_layers(
    header: GgufFile,
    owner: str,
    n_wanted: int,
    n_layers: int,
    sizes: ContextSizes,
    gpu_bytes: int,
) -> list[MemoryRow]:
    """Plan rows of `n_wanted` layers on GPUs. Raises BudgetError if they do not fit."""

    def rows(n: int) -> list[MemoryRow]:
        kv_share = min(1.0, max(0, n - 1) / n_layers)
        return [
            MemoryRow(owner, "weights of layers", offloading(header, n).nbytes),
            MemoryRow(owner, "KV cache of layers", int(kv_share * sizes.kv_bytes)),
            MemoryRow(owner, "compute buffers", sizes.compute_bytes),
        ]

    def takes(n: int) -> int:
        return sum(row.nbytes for row in rows(n))

    if takes(n_wanted) > gpu_bytes:
        flag = setting.n_gpu_layers_draft if owner == "draft" else setting.n_gpu_layers
        most = min(n_wanted, n_layers + 1)
        fitting = next((n for n in range(most - 1, 0, -1) if takes(n) <= gpu_bytes), 0)
        raise BudgetError(
            f"{flag(n_wanted)} puts {takes(n_wanted) / MIB:.0f} MiB on "
            f"the GPU, where {gpu_bytes / MIB:.0f} are left for the {owner}: "
            + (f"{flag(fitting)} fits" if fitting else f"leave {flag} out")
        )
    return rows(n_wanted)


def _n_layers(header: GgufFile) -> int:
    """The number of layers, including prediction layers (MTP)."""
    found = (_LAYER.match(tensor.name) for tensor in header.tensors)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _layer(tensor: TensorEntry, n_layers: int) -> int:
    """The layer of a tensor: `n_layers` for the output head, -1 for the input."""
    if tensor.name.startswith(_ALL_LAYERS):
        return 0
    if match := _LAYER.match(tensor.name):
        return int(match[1])
    return n_layers if _AFTER_LAYERS.match(tensor.name) else -1


def _refused(header: GgufFile) -> set[int]:
    """Weight types that at least one GPU cannot multiply."""
    devices = gpu.find_all()
    shapes = {(t.type.code, *t.shape[:2]) for t in header.tensors if len(t.shape) > 1}
    return {
        kind
        for kind, n_in, n_out in shapes
        if not all(ggml.multiplies(device, kind, n_in, n_out) for device in devices)
    }
