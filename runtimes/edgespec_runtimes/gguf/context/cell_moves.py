"""Moves the cells of one KV cache to wanted places, in place and a few tokens at a time.

llama.cpp restores saved cells to the first free ones. Cells are therefore filled in ascending
order, and what is in the way goes to free cells behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import NamedTuple

from edgespec_runtimes.gguf.context.cells import LlamaMemory
from edgespec_runtimes.gguf.context.windows import WindowCells


class UsedCell(NamedTuple):
    """A cell in use."""

    cell: int
    position: int
    sequences: tuple[int, ...]


class CellMoves:
    """The wanted order of the cells in use, from cell `begin` on; None stands for a filled cell.

    No other cell from `begin` on is in use, and all before it are.
    """

    def __init__(
        self,
        memory: LlamaMemory,
        windows: WindowCells | None,
        order: Sequence[UsedCell | None],
        begin: int,
    ) -> None:
        self.moved: dict[int, int] = {}
        """New cells of those moved so far, by their first cells."""
        self._memory = memory
        self._windows = windows
        self._order = order
        self._begin = begin
        self._occupants = {place.cell: place for place in order if place is not None}
        """Places by the cells where they are now."""

    def apply(self, most: int, fill: Callable[[int], None]) -> None:
        """Move all cells, at most `most` tokens at once; `fill` fills the first free cells."""
        n = 0
        while n < len(self._order):
            place = self._order[n]
            n_fit = 1
            if place is None or self._cell_of(place) != self._begin + n:
                is_filled = place is None
                rest = islice(self._order, n, n + most)
                n_fit = next((i for i, one in enumerate(rest) if (one is None) != is_filled), most)
                n_fit = min(n_fit, len(self._order) - n)
                wanted = self._order[n : n + n_fit]
                self._put([place for place in wanted if place is not None], n, n_fit, fill)
            n += n_fit

    def _cell_of(self, place: UsedCell) -> int:
        return self.moved.get(place.cell, place.cell)

    def _put(
        self, wanted: Sequence[UsedCell], n: int, n_cells: int, fill: Callable[[int], None]
    ) -> None:
        """Put `wanted`, or else filled cells, into `n_cells` cells; what was there goes behind."""
        first, end = self._begin + n, self._begin + n + n_cells
        kept = {place.cell for place in wanted}
        there = [self._occupants.get(cell) for cell in range(first, end)]
        others = [place for place in there if place is not None and place.cell not in kept]
        runs, behind = self._runs(wanted), self._runs(others)
        saved = [self._memory.save(*run.range) for run in (*runs, *behind)]
        for run in (*runs, *behind):
            for sequence in run.sequences:
                self._memory.remove(sequence, *run.range[1:])
        were_held = [
            self._windows.are_held(map(self._cell_of, run.places)) if self._windows else None
            for run in (*runs, *behind)
        ]
        for place in (*wanted, *others):
            del self._occupants[self._cell_of(place)]
        if not wanted:
            fill(n_cells)
        free = (cell for cell in count(end) if cell not in self._occupants)
        targets = [*range(first, first + len(wanted)), *islice(free, len(others))]
        for run, content, held in zip((*runs, *behind), saved, were_held, strict=True):
            cells, targets = targets[: len(run.places)], targets[len(run.places) :]
            first_sequence, *further = run.sequences
            self._memory.restore(content, *run.range)
            for sequence in further:
                self._memory.copy(first_sequence, sequence, *run.range[1:])
            for place, cell in zip(run.places, cells, strict=True):
                self.moved[place.cell] = cell
                self._occupants[cell] = place
            if self._windows is not None and held is not None:
                for cell in cells:
                    self._windows.write(cell)
                self._windows.move(cells, held)

    def _runs(self, places: Iterable[UsedCell]) -> list[_Run]:
        """`places` in runs of ascending cells, in which llama.cpp saves them."""
        runs: list[_Run] = []
        latest: dict[tuple[int, ...], _Run] = {}
        for place in places:
            run = latest.get(place.sequences)
            if (
                run is None
                or run.places[-1].position + 1 != place.position
                or self._cell_of(run.places[-1]) > self._cell_of(place)
            ):
                run = latest[place.sequences] = _Run(place.sequences)
                runs.append(run)
            run.places.append(place)
        return runs


@dataclass(slots=True)
class _Run:
    """Cells of consecutive positions in the same sequences."""

    sequences: tuple[int, ...]
    places: list[UsedCell] = field(default_factory=list)

    @property
    def range(self) -> tuple[int, int, int]:
        """One of the sequences, and the half-open range of positions."""
        begin = self.places[0].position
        return self.sequences[0], begin, begin + len(self.places)


def merged(places: Iterable[UsedCell]) -> Mapping[int, UsedCell]:
    """`places` of several texts by cell, with all sequences that contain them."""
    found: dict[int, UsedCell] = {}
    for place in places:
        same = found.get(place.cell)
        sequences = (*same.sequences, *place.sequences) if same else place.sequences
        found[place.cell] = place._replace(sequences=sequences)
    return found
