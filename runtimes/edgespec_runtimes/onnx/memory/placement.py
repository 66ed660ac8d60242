"""Decides which pieces of a decoder stay in a GPU's memory: all, some, or none.

Pure arithmetic on sizes. Knows neither graphs nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgespec.memory.pinning import spread


@dataclass(frozen=True, slots=True)
class PieceSize:
    """A piece of a decoder with weights of its own."""

    graph: int
    """Index of its graph; pieces of the same graph have equal sizes and run one at a time."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GpuNeeds:
    """Memory that a decoder needs on a GPU."""

    whole_bytes: int
    """Bytes of a session that contains everything."""
    fixed_bytes: int
    """Bytes for the pieces besides their weights."""
    pieces: tuple[PieceSize, ...]
    """Pieces in execution order; empty if the decoder cannot be cut."""
    weight_bytes: int = 0
    """Bytes of weights within `whole_bytes`."""
    session_bytes: int = 0
    """Bytes of sessions, one per graph of the cut, within `fixed_bytes`."""

    @property
    def largest(self) -> dict[int, int]:
        """Bytes of the largest piece of each graph."""
        found: dict[int, int] = {}
        for piece in self.pieces:
            found[piece.graph] = max(piece.nbytes, found.get(piece.graph, 0))
        return found

    @property
    def least_bytes(self) -> int:
        """Least GPU memory with which the GPU can compute it."""
        if not self.pieces:
            return self.whole_bytes
        return min(self.whole_bytes, self.fixed_bytes + sum(self.largest.values()))


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a decoder's weights."""

    uses_gpu: bool = False
    """False if the CPU computes everything."""
    is_whole: bool = False
    """True if one session has all weights on the GPU."""
    kept: frozenset[int] = frozenset()
    """Indices of the pieces whose weights stay on the GPU."""
    kept_bytes: int = 0
    room_bytes: int = 0
    """GPU memory into which the weights of other pieces are copied, for one piece per graph."""


def place(gpu_bytes: int, needs: GpuNeeds) -> Placement:
    """The placement with `gpu_bytes` of GPU memory.

    The GPU computes all pieces or none. Weights of pieces that do not stay are copied to it in
    every pass, which needs memory for at least one piece per graph.
    """
    if needs.whole_bytes <= gpu_bytes:
        return Placement(uses_gpu=True, is_whole=True)
    pieces, largest = needs.pieces, needs.largest
    left = gpu_bytes - needs.fixed_bytes - sum(largest.values())
    if not pieces or left < 0:
        return Placement()
    total = sum(piece.nbytes for piece in pieces)
    fits = needs.fixed_bytes + total <= gpu_bytes
    kept = set(range(len(pieces)) if fits else _spread(pieces, left))
    for graph in largest:
        members = [i for i, piece in enumerate(pieces) if piece.graph == graph]
        others = [i for i in members if i not in kept]
        if len(others) == 1:  # its room is not shared, so it can stay: a head, or the last layer
            kept.add(others[0])
    copied = {piece.graph for i, piece in enumerate(pieces) if i not in kept}
    return Placement(
        uses_gpu=True,
        kept=frozenset(kept),
        kept_bytes=sum(pieces[i].nbytes for i in kept),
        room_bytes=sum(largest[graph] for graph in copied),
    )


def _spread(pieces: Sequence[PieceSize], room: int) -> list[int]:
    """Indices of pieces, of graphs with several pieces, that fit into `room`, spread evenly.

    While a kept piece computes, the next one that is not kept is read.
    """
    n_alike: dict[int, int] = {}
    for piece in pieces:
        n_alike[piece.graph] = n_alike.get(piece.graph, 0) + 1
    candidates = [i for i, piece in enumerate(pieces) if n_alike[piece.graph] > 1]
    order = [candidates[n] for n in spread(len(candidates))]
    taken = accumulate(pieces[i].nbytes for i in order)
    return [i for i, nbytes in zip(order, taken, strict=True) if nbytes <= room]
