"""Says which weights are pinned and which are streamed, and where a pass must stop for them.

Pure bookkeeping over the segments of one cut; moves no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edgespec_runtimes.gguf.weights.segments import TracedWeight, WeightGroup, join_pinned
from edgespec_runtimes.kit.segmented import Division


class Arrangement(Division[WeightGroup]):
    """A division whose pinned slices are joined, with its stops by address."""

    def __init__(self, groups: Sequence[WeightGroup], pinned: frozenset[int]) -> None:
        super().__init__(*join_pinned(groups, pinned))
        whole = {i: group for i, group in enumerate(self.streamed) if group.rows is None}
        self.swaps = [offsets(group) for group in self.streamed]
        """Weights of each streamed segment, with their offsets in its slot."""
        self.segment_of = {w.address: i for i, group in whole.items() for w in group.weights}
        """Index of the streamed segment by address of a weight."""
        self.last_of = {group.weights[-1].address: i for i, group in whole.items()}
        """The same by address of the last weight of the segment."""
        self.stop_after = self._boundaries()

    @property
    def pinned_whole(self) -> set[int]:
        """Addresses of the weights that are pinned as a whole."""
        groups = (group for group in self.pinned_groups if group.rows is None)
        return {weight.address for group in groups for weight in group.weights}

    def _boundaries(self) -> frozenset[int]:
        """Weights after whose product llama.cpp must compute before it continues with callbacks.

        They are the last ones of each streamed segment, so that its slot is freed, and the last
        ones before it, so that waiting for it does not delay earlier nodes.
        """
        stops = set(self.last_of)
        ordered = [weight.address for group in self.groups for weight in group.weights]
        for address, following in pairwise(ordered):
            if self.segment_of.get(following, -1) != self.segment_of.get(address, -1):
                stops.add(address)
        return frozenset(stops)


def offsets(group: WeightGroup) -> list[tuple[TracedWeight, int]]:
    """Weights of a segment and their offsets in the slot; empty for a slice of a weight."""
    if group.rows is not None:
        return []
    entries = ((weight, weight.entry) for weight in group.weights)
    return [(w, group.segment.locate(entry.file_index, entry.offset)) for w, entry in entries]
