"""Extents of a mixture's experts in files: slices of stacked matrices, read in whole blocks.

Arithmetic only; reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.paging.reader import BLOCK_BYTES, Extent, Run, block_ceil, block_floor


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """A layer's stacked matrix: the slices of its experts, one behind the other in a file."""

    extent: Extent
    n_experts: int

    @property
    def slice_bytes(self) -> int:
        return self.extent.nbytes // self.n_experts

    @property
    def room_bytes(self) -> int:
        """Bytes of a slice in memory, widened to whole blocks."""
        return max(self.run(expert).nbytes for expert in range(min(self.n_experts, 64)))

    @property
    def stride_bytes(self) -> int:
        """Bytes from one slice to the next in memory: each has blocks of its own there."""
        return self.slice_bytes + (2 if self.slice_bytes % BLOCK_BYTES else 1) * BLOCK_BYTES

    @property
    def range_bytes(self) -> int:
        """Bytes of memory's address range from the first expert's place to the end of the last."""
        return self.place(self.n_experts - 1) + self.room_bytes

    def place(self, expert: int) -> int:
        """Offsets in the address range at which the blocks of an expert's slice begin."""
        begin = self.extent.offset % BLOCK_BYTES + expert * self.stride_bytes
        return block_floor(begin)

    def run(self, expert: int) -> Run:
        """The whole blocks that hold an expert's slice."""
        begin = self.extent.offset + expert * self.slice_bytes
        end = begin + self.slice_bytes
        start = block_floor(begin)
        return Run(self.extent.file_index, start, block_ceil(end) - start, end - start, 0)


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The matrices of one layer's experts, in the order in which they are computed."""

    name: str
    matrices: tuple[ExpertMatrix, ...]
    n_used: int
    """Experts that one token chooses."""

    @property
    def n_experts(self) -> int:
        return self.matrices[0].n_experts

    @property
    def room_bytes(self) -> int:
        """Bytes of an expert's slices in memory, each widened to whole blocks."""
        return sum(matrix.room_bytes for matrix in self.matrices)

    @property
    def nbytes(self) -> int:
        return sum(matrix.extent.nbytes for matrix in self.matrices)


def chosen_experts(choices: np.ndarray) -> list[int]:
    """Experts that are chosen at least once, ascending, of int [n_tokens, n_used]; numpy.unique
    would import numpy.ma after the plan, which takes up to 10 MiB."""
    return np.flatnonzero(np.bincount(choices.ravel())).tolist()
