"""Keeps the cells of all texts in one KV cache in order.

Attention sums over cells in their order, which affects rounding. The cells of a text must therefore
be in the order of its positions; cells of other texts between them do not matter. llama.cpp puts a
batch into the first free cells. To make these always the last ones, a cell that is dropped before
cells that stay is not freed, but moved to the spare sequence, in which nothing is ever decoded. If
there are many such cells, or the cache is full, the cache is compacted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from edgespec_runtimes.gguf.context.windows import WindowCells

MIN_WASTE = 256
"""Dropped cells for which compacting is not worthwhile: attention processes cells in such units."""
WASTE_SHARE = 0.5
"""Largest share of dropped cells, relative to the cells in use."""


class SequenceMemory(Protocol):
    """llama.cpp's sequence operations; positions are half-open ranges, -1 means the end."""

    def remove(self, sequence: int, begin: int, end: int) -> None: ...

    def copy(self, source: int, target: int, begin: int, end: int) -> None: ...

    def save(self, sequence: int, begin: int, end: int) -> Any: ...

    def restore(self, saved: Any, sequence: int, begin: int, end: int) -> None: ...

    def max_at_once(self, sequence: int, n_tokens: int) -> int:
        """Most tokens that `save` may save at once, of a sequence with `n_tokens`."""


class UsedCell(NamedTuple):
    """A cell in use."""

    cell: int
    position: int
    sequences: tuple[int, ...]


class Occupant(Protocol):
    """A text in the cache."""

    @property
    def last_cell(self) -> int:
        """The last cell in use; -1 if there is none."""

    @property
    def home(self) -> int:
        """The sequence that holds the committed prefix."""

    @property
    def n_committed(self) -> int: ...

    def places_from(self, cell: int) -> Iterable[UsedCell]:
        """Cells in use from `cell` on, with all sequences that contain them."""

    def seen_cells(self, n_before: int) -> Iterable[Collection[int]]:
        """Cells of guesses, and the `n_before` cells before each position where the text may
        continue."""

    def move(self, moved: Mapping[int, int]) -> None:
        """Update the text's cells after they were moved."""


class CellLayout:
    """The cells of one cache; those from `top` on are free."""

    def __init__(
        self,
        memory: SequenceMemory,
        n_cells: int,
        spare: int,
        windows: WindowCells | None = None,
    ) -> None:
        """`windows` are the cells of sliding-window layers, if they free cells."""
        self.memory = memory
        self.windows = windows
        self.texts: list[Occupant] = []
        self.top = 0
        self.n_moved = 0
        """Number of tokens moved so far."""
        self.n_cells = n_cells
        self._spare = spare
        self._waste: set[int] = set()
        """Dropped cells in the spare sequence."""

    @property
    def n_dropped(self) -> int:
        """Number of dropped cells, which are not free."""
        return len(self._waste)

    def make_room(self, n_rows: int) -> None:
        """Call before a batch of `n_rows` is placed."""
        n_used = self.top - len(self._waste)
        is_full = self.top + n_rows > self.n_cells
        # dropped cells take memory in window layers
        most = MIN_WASTE if self.windows else max(MIN_WASTE, WASTE_SHARE * n_used)
        if self._waste and (is_full or len(self._waste) > most):
            self.put_in_order()
        self.give_back()

    def give_back(self, at_once: bool = False) -> None:
        """Free the memory of cells outside all windows in window layers."""
        if self.windows:
            n_kept = self.windows.n_kept
            seen = (cells for text in self.texts for cells in text.seen_cells(n_kept))
            self.windows.give_back(seen, at_once)

    def append(self) -> int:
        """The cell of the next row."""
        if self.windows:
            self.windows.write(self.top)
        self.top += 1
        return self.top - 1

    def drop(
        self, doomed: Collection[int], places: Iterable[tuple[int, int, Sequence[int]]]
    ) -> None:
        """Drop the cells `doomed`, which no text uses, before they are removed from sequences.

        `places` has, by sequence, the ascending cells from a position on.
        """
        n_used = 1 + max((text.last_cell for text in self.texts), default=-1)
        if self._waste and min(self._waste) >= n_used:
            self._free_waste()
        self.top = max(n_used, 1 + max(self._waste, default=-1))
        wasted = {cell for cell in doomed if cell < self.top}
        unlabelled = set(wasted)
        for sequence, position, cells in places:
            mine = [n for n, cell in enumerate(cells) if cell in unlabelled]
            if mine:
                first, last = mine[0], mine[-1]
                unlabelled.difference_update(cells[first : last + 1])
                self.memory.copy(sequence, self._spare, position + first, position + last + 1)
        self._waste |= wasted

    def clear(self) -> None:
        """Forget all cells: the cache was cleared."""
        self._waste.clear()
        self.top = 0
        if self.windows:
            self.windows.clear()

    def put_in_order(self) -> None:
        """Compact the cache: move cells behind dropped ones down, a few tokens at a time."""
        if not self._waste:
            return
        begin = min(self._waste)
        self._free_waste()
        in_use: dict[int, UsedCell] = {}
        for text in self.texts:
            for place in text.places_from(begin):
                same = in_use.get(place.cell)
                sequences = (*same.sequences, *place.sequences) if same else place.sequences
                in_use[place.cell] = place._replace(sequences=sequences)
        ordered = [in_use[cell] for cell in sorted(in_use)]
        self.top = begin
        longest = max(self.texts, key=lambda text: text.n_committed)
        n_tokens = longest.n_committed
        most = self.memory.max_at_once(longest.home, n_tokens) if n_tokens > 1 else 1
        for first in range(0, len(ordered), most):
            self._move_down(ordered[first : first + most])

    def _move_down(self, places: Sequence[UsedCell]) -> None:
        """Move consecutive cells to the first free ones, which are contiguous after their
        removal."""
        runs = _runs(places)
        saved = [self.memory.save(*run.range) for run in runs]
        for run in runs:
            for sequence in run.sequences:
                self.memory.remove(sequence, *run.range[1:])
        moved: dict[int, int] = {}
        old = [cell for run in runs for cell in run.cells]
        were_held = self.windows.are_held(old) if self.windows else None
        for run, content in zip(runs, saved, strict=True):
            first, *others = run.sequences
            self.memory.restore(content, *run.range)
            for other in others:
                self.memory.copy(first, other, *run.range[1:])
            moved |= {cell: self.append() for cell in run.cells}
        for text in self.texts:
            text.move(moved)
        if self.windows and were_held is not None:
            self.windows.move([*moved.values()], were_held)
        self.n_moved += len(moved)

    def _free_waste(self) -> None:
        self.memory.remove(self._spare, -1, -1)
        self._waste.clear()


@dataclass(slots=True)
class _Run:
    """Cells of consecutive positions in the same sequences."""

    sequences: tuple[int, ...]
    begin: int
    cells: list[int]

    @property
    def range(self) -> tuple[int, int, int]:
        """One of the sequences, and the half-open range of positions."""
        return self.sequences[0], self.begin, self.begin + len(self.cells)


def _runs(places: Iterable[UsedCell]) -> list[_Run]:
    runs: list[_Run] = []
    latest: dict[tuple[int, ...], _Run] = {}
    for cell, position, sequences in places:
        run = latest.get(sequences)
        if run is None or run.begin + len(run.cells) != position:
            run = latest[sequences] = _Run(sequences, position, [])
            runs.append(run)
        run.cells.append(cell)
    return runs
