"""Divides a GPU's memory for one decoder: all of it there, some of its pieces, or none.

Pure arithmetic on sizes. Knows neither graphs nor devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.memory.budget import spread_evenly


@dataclass(frozen=True, slots=True)
class PieceSize:
    """A piece of a decoder that has weights of its own, in the order of execution."""

    graph: int
    """Pieces of one graph are alike, and one of them is computed at a time."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GpuNeeds:
    """Memory that a decoder would take of a GPU."""

    whole_bytes: int
    """Bytes of a session that has everything in it."""
    fixed_bytes: int
    """Bytes that pieces need besides their weights."""
    pieces: tuple[PieceSize, ...]
    """None: it is all or nothing."""
    weight_bytes: int = 0
    """Part of `whole_bytes` that weights take."""
    session_bytes: int = 0
    """Part of `fixed_bytes` that sessions take, one for each graph of the cut."""

    @property
    def largest(self) -> dict[int, int]:
        """Bytes of the largest piece of each graph."""
        found: dict[int, int] = {}
        for piece in self.pieces:
            found[piece.graph] = max(piece.nbytes, found.get(piece.graph, 0))
        return found

    @property
    def least_bytes(self) -> int:
        """Least bytes of GPU memory; with fewer the CPU computes it."""
        if not self.pieces:
            return self.whole_bytes
        return min(self.whole_bytes, self.fixed_bytes + sum(self.largest.values()))


@dataclass(frozen=True, slots=True)
class Placement:
    """Division of a decoder's weights while a GPU computes it."""

    uses_gpu: bool = False
    """False: the CPU computes all of it."""
    is_whole: bool = False
    """One session has all weights on the GPU."""
    kept: frozenset[int] = frozenset()
    """Indices of the pieces whose weights stay on the GPU."""
    kept_bytes: int = 0
    room_bytes: int = 0
    """On the GPU, for the weights of the other pieces while they compute: one of each graph."""


def place(gpu_bytes: int, needs: GpuNeeds) -> Placement:
    """Put on a GPU what `gpu_bytes` allow.

    The GPU computes every piece or none: the weights of those that do not stay are copied there in
    every pass, so room for one of each graph is the least.
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
        if len(others) == 1:  # it has the room for itself: a head, or the last layer
            kept.add(others[0])
    copied = {piece.graph for i, piece in enumerate(pieces) if i not in kept}
    return Placement(
        uses_gpu=True,
        kept=frozenset(kept),
        kept_bytes=sum(pieces[i].nbytes for i in kept),
        room_bytes=sum(largest[graph] for graph in copied),
    )


def _spread(pieces: Sequence[PieceSize], room: int) -> list[int]:
    """Indices of as many pieces, of those not alone with their graph, as fit into `room`, evenly
    spaced.

    While one that stays computes, the next that does not is read.
    """
    n_alike: dict[int, int] = {}
    for piece in pieces:
        n_alike[piece.graph] = n_alike.get(piece.graph, 0) + 1
    candidates = [i for i, piece in enumerate(pieces) if n_alike[piece.graph] > 1]
    return [candidates[i] for i in spread_evenly([pieces[i].nbytes for i in candidates], room)]
