"""Which weights of a model are packed for the CPU while they are paged.

They are packed where they were read to, pinned ones at once, streamed ones when they are computed
with: the file stays as it is, and no budget changes what is computed. How weights are packed is the
business of `llama.packer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.packer import Mark, Packer
from edgespec_runtimes.gguf.rounding import has_uneven_packing, packed_matrices
from edgespec_runtimes.gguf.segments import WeightGroup


def packs_when_paged(header: GgufFile) -> bool:
    """Whether weights are packed: all that a model in memory packs, or none. Not where packed ones
    round otherwise for several rows than for one, as stored ones do not."""
    can = loading.packing().allowed and bool(packed_matrices(header))
    return can and not has_uneven_packing(header)


def marks(packer: Packer, header: GgufFile, groups: Sequence[WeightGroup]) -> dict[int, Mark]:
    """Of the weights that are packed, by the address of their tensor. Stacked experts are not:
    there is no packed kernel for several rows of them."""
    if not packs_when_paged(header):
        return {}
    found = {}
    for weight in (weight for group in groups for weight in group.weights):
        if len(weight.entry.shape) == 2 and not weight.looked_up:
            mark = packer.mark(weight.entry.type.code, *weight.entry.shape)
            if mark is not None:
                found[weight.address] = mark
    return found
