"""The tensors that llama.cpp puts on GPUs, known before the model is loaded.

The rule is llama.cpp's (`llama_model_base::load_tensors`): the last layers, the output head counted
as one. `MappedWeights` checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.memory.budget import MemoryRow
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.llama import ggml, gpu
from edgespec_runtimes.gguf.segments import TracedWeight

STAGING_BYTES = 4 << 20
"""Pinned buffers through which weights pass to a device that has them. For others a tensor is read
whole before it is copied."""
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_LAYER = re.compile(r"blk\.(\d+)\.")
_AFTER_LAYERS = re.compile(r"output(_norm)?\.")


@dataclass(frozen=True, slots=True)
class Offloading:
    """The part of one model that goes to GPUs."""

    names: frozenset[str] = frozenset()
    """Names of the tensors that go to a GPU."""
    nbytes: int = 0
    """Bytes that they take on the GPU."""
    has_cache: bool = False
    """True if the whole KV cache is on the GPU: each layer's goes with the layer."""
    has_own_memory: bool = True
    """False for a GPU that shares the process's memory, which then holds all of this."""
    loading_bytes: int = 0
    """Bytes of the weights that are in the process's memory at once while loading."""
    library: gpu.LibraryMemory | None = None
    """Process memory of the GPU's library; None if no GPU is used."""

    @property
    def has_head(self) -> bool:
        """True if the output head is on the GPU: it goes first. A tied one is copied."""
        return self.library is not None

    @property
    def rows(self) -> tuple[MemoryRow, ...]:
        """The rows of the plan that both models share."""
        if self.library is None or self.library.nbytes is None:
            return ()
        return (MemoryRow("process", "GPU library", self.library.nbytes),)

    def staying(self, weights: Sequence[TracedWeight]) -> list[TracedWeight]:
        """The weights that stay in the process's memory. Embeddings that are the output head, too,
        are copied to the GPU and only looked up."""
        staying = [weight for weight in weights if weight.entry.name not in self.names]
        if not self.has_head:
            return staying
        return [replace(w, swappable=False) if w.looked_up else w for w in staying]


def offloading(header: GgufFile, n_gpu_layers: int) -> Offloading:
    """Ask the GPUs which weights they multiply; others stay in the process's memory. The first call
    of all measures the memory of the GPU's library."""
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
    tied = header.tensors_by_name.get(_EMBEDDINGS) if _HEAD not in header.tensors_by_name else None
    return Offloading(
        names=frozenset(tensor.name for tensor in offloaded),
        nbytes=sum(tensor.nbytes for tensor in offloaded) + (tied.nbytes if tied else 0),
        has_cache=first == 0,
        has_own_memory=all(gpu.has_own_memory(device) for device in gpu.find_all()),
        loading_bytes=max([STAGING_BYTES, *(tensor.nbytes for tensor in offloaded)]),
        library=gpu.library_memory(),
    )


def _n_layers(header: GgufFile) -> int:
    """The number of layers, including those that predict several tokens ahead."""
    found = (_LAYER.match(tensor.name) for tensor in header.tensors)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _layer(tensor: TensorEntry, n_layers: int) -> int:
    """The layer of a tensor: `n_layers` for the output head, -1 for the input."""
    if match := _LAYER.match(tensor.name):
        return int(match[1])
    return n_layers if _AFTER_LAYERS.match(tensor.name) else -1


def _refused(header: GgufFile) -> set[int]:
    """Types of weights with which one of the GPUs does not multiply."""
    devices = gpu.find_all()
    shapes = {(t.type.code, *t.shape[:2]) for t in header.tensors if len(t.shape) > 1}
    return {
        kind
        for kind, n_in, n_out in shapes
        if not all(ggml.multiplies(device, kind, n_in, n_out) for device in devices)
    }
