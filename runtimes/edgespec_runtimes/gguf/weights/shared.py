"""Weights of a draft that shares its target's: those that the target pins, and copies of the rest.

The tensors belong to a model that is mapped and not read. Knows no plan and no budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.paging.pager import PinnedSegments
from edgespec.paging.reader import DirectReader, Extent, Segment
from edgespec.ports import Progress
from edgespec_runtimes.gguf.file.header import GgufFile, TensorEntry
from edgespec_runtimes.gguf.file.trimmed_header import EMBEDDINGS
from edgespec_runtimes.gguf.kernels.packer import Packer
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.weights.arrangement import offsets
from edgespec_runtimes.gguf.weights.packing import packed_fields
from edgespec_runtimes.gguf.weights.segments import SMALL_BYTES, TracedWeight, WeightGroup
from edgespec_runtimes.kit.segmented import one_by_one

_FIELDS = ("type", "buffer", "nb", "data", "extra")
"""Fields of a ggml_tensor that say where its values are, and how they are stored."""


def copy_sizes(draft: GgufFile, target: GgufFile | None) -> dict[str, int]:
    """Bytes of the draft's copies of the target's matrices, by name; empty without a target.

    Its head has the name of the target's embeddings, and is no copy of them.
    """
    theirs = target.tensors_by_name if target else {}
    return {
        entry.name: _segment([entry]).slot_bytes
        for entry in draft.tensors
        if entry.nbytes >= SMALL_BYTES
        and entry.name != EMBEDDINGS
        and entry.name in theirs
        and entry.shape == theirs[entry.name].shape
    }


def other_bytes(draft: GgufFile, copies: Collection[str]) -> int:
    """Bytes of the draft's tensors besides these copies."""
    return _segment([entry for entry in draft.tensors if entry.name not in copies]).slot_bytes


class SharedWeights(Closeable):
    """The memory of a draft's own weights; its other tensors are pointed to the target's."""

    def __init__(self, header: GgufFile, weights: Sequence[TracedWeight], shared: Collection[str]):
        """`shared` are the names of the target's weights. Reads nothing before `fill`."""
        self._header = header
        self._shared = {w.entry.name: w.address for w in weights if w.entry.name in shared}
        own = [weight for weight in weights if weight.entry.name not in shared]
        matrices = [weight for weight in own if weight.entry.nbytes >= SMALL_BYTES]
        small = [weight for weight in own if weight.entry.nbytes < SMALL_BYTES]
        self._groups = [_group(part) for part in (small, *([w] for w in matrices)) if part]
        self._memory = PinnedSegments()
        self._packer = Packer()

    def fill(self, stop: AbortFlag, progress: Progress | None) -> None:
        """Read the draft's own weights. Raises WeightReadError, and Cancelled once `stop` is
        set."""
        packed = packed_fields(self._packer, self._header, self._groups)
        reader = DirectReader(self._header.paths)
        try:
            for group in one_by_one(self._groups, stop.is_set, "reading weights", progress):
                base = self._memory.load(group.segment, reader, stop.is_set)
                for weight, offset in offsets(group):
                    weight.pointer.value = base + offset
                    if fields := packed.get(weight.address):
                        self._packer.pack(
                            base + offset, weight.entry.type.code, *weight.entry.shape
                        )
                        fields.write_to(weight.address)
        finally:
            reader.close()

    def borrow(self, tensors: Mapping[str, int]) -> None:
        """Point the shared tensors to what the target's, given by their addresses, point to."""
        for name, address in self._shared.items():
            ours = abi.GgmlTensor.from_address(address)
            theirs = abi.GgmlTensor.from_address(tensors[name])
            for field in _FIELDS:
                setattr(ours, field, getattr(theirs, field))

    def close(self) -> None:
        close_all(self._memory.close, self._packer.close)


def _segment(entries: Sequence[TensorEntry]) -> Segment:
    extents = [Extent(entry.file_index, entry.offset, entry.nbytes) for entry in entries]
    return Segment(entries[0].name, extents)


def _group(weights: Sequence[TracedWeight]) -> WeightGroup:
    return WeightGroup(_segment([weight.entry for weight in weights]), tuple(weights))
