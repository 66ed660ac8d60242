"""What llama.cpp puts on GPUs, known before any of it is there.

The rule is llama.cpp's (`llama_model_base::load_tensors`): the last layers, the output head counted
as one. Whether it was followed is seen when the model is loaded.
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
"""Pinned buffers through which weights pass, where a device has them. Elsewhere a tensor is read
whole before it is copied."""
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_LAYER = re.compile(r"blk\.(\d+)\.")
_AFTER_LAYERS = re.compile(r"output(_norm)?\.")


@dataclass(frozen=True, slots=True)
class Offloading:
    """Of one model."""

    names: frozenset[str] = frozenset()
    """Of its tensors that go to a GPU."""
    nbytes: int = 0
    """That they take there."""
    has_cache: bool = False
    """All of the cache of keys and values is there, too: each layer's goes with it."""
    has_own_memory: bool = True
    """Of the GPU: else all of this is in the process's memory all the same."""
    loading_bytes: int = 0
    """What of the weights is in the process's memory at once, on their way."""
    library: gpu.LibraryMemory | None = None
    """What a GPU's library takes of the process's memory; None where none is used."""

    @property
    def has_head(self) -> bool:
        """It goes there first. One that is the embeddings, too, is copied."""
        return self.library is not None

    @property
    def rows(self) -> tuple[MemoryRow, ...]:
        """Of the plan, for what both models share."""
        if self.library is None or self.library.nbytes is None:
            return ()
        return (MemoryRow("process", "GPU library", self.library.nbytes),)

    def staying(self, weights: Sequence[TracedWeight]) -> list[TracedWeight]:
        """Those that stay in the process's memory. Of embeddings that are the output head, too, a
        copy goes to the GPU: they are only looked up."""
        left = [weight for weight in weights if weight.entry.name not in self.names]
        if not self.has_head:
            return left
        return [replace(w, swappable=False) if w.looked_up else w for w in left]


def offloading(header: GgufFile, n_gpu_layers: int) -> Offloading:
    """Asks the GPUs what they take; the first time of all also what that takes. What no GPU
    multiplies stays where it is."""
    if not n_gpu_layers:
        return Offloading()
    n_layers = _n_layers(header)
    first = max(0, n_layers + 1 - n_gpu_layers)
    refused = _refused(header)
    there = [
        tensor
        for tensor in header.tensors
        if first <= _layer(tensor, n_layers) and tensor.type.code not in refused
    ]
    tied = header.tensors_by_name.get(_EMBEDDINGS) if _HEAD not in header.tensors_by_name else None
    return Offloading(
        names=frozenset(tensor.name for tensor in there),
        nbytes=sum(tensor.nbytes for tensor in there) + (tied.nbytes if tied else 0),
        has_cache=first == 0,
        has_own_memory=all(gpu.has_own_memory(device) for device in gpu.find_all()),
        loading_bytes=max([STAGING_BYTES, *(tensor.nbytes for tensor in there)]),
        library=gpu.library_memory(),
    )


def _n_layers(header: GgufFile) -> int:
    """Those that predict several tokens ahead are layers, too."""
    found = (_LAYER.match(tensor.name) for tensor in header.tensors)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def _layer(tensor: TensorEntry, n_layers: int) -> int:
    """That a tensor belongs to: `n_layers` for the output head, -1 for the input."""
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
