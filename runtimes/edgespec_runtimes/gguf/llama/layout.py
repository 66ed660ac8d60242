"""Places of the cells of all texts in one KV cache, as llama.cpp assigns them.

Attention adds up what it sees in the order of cells, and rounding knows the order. A text's cells
must therefore stand in the order of its positions; cells of others between them change nothing.
llama.cpp puts a batch into the first free cells. So that these are always the last ones, a cell
that is dropped before others that stay is not freed: it goes to the spare sequence, in which
nothing is ever decoded. When such cells are many, or the cache is full, all are put in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from edgespec_runtimes.gguf.llama.windows import WindowCells

MIN_WASTE = 256
"""Dropped cells that are not worth putting the others in order: attention looks at so many more at
once in any case."""
WASTE_SHARE = 0.5
"""Share of the cells in use that as many dropped ones may be."""


class SequenceMemory(Protocol):
    """llama.cpp's sequence operations; positions are half-open ranges, -1 means the end."""

    def remove(self, sequence: int, begin: int, end: int) -> None: ...

    def copy(self, source: int, target: int, begin: int, end: int) -> None: ...

    def save(self, sequence: int, begin: int, end: int) -> Any: ...

    def restore(self, saved: Any, sequence: int, begin: int, end: int) -> None: ...

    def max_at_once(self, sequence: int, n_tokens: int) -> int:
        """Tokens that `save` may take at once, of a sequence that holds `n_tokens`."""


class UsedCell(NamedTuple):
    """A cell in use."""

    cell: int
    position: int
    sequences: tuple[int, ...]


class Occupant(Protocol):
    """One text of the cache."""

    @property
    def last_cell(self) -> int:
        """The last cell in use, -1 for none."""

    @property
    def home(self) -> int:
        """The sequence that holds the committed prefix."""

    @property
    def n_committed(self) -> int: ...

    def places_from(self, cell: int) -> Iterable[UsedCell]:
        """Cells in use from `cell` on; no sequence that is not named keeps a label of theirs."""

    def seen_cells(self, n_before: int) -> Iterable[Collection[int]]:
        """Cells of guesses, and the `n_before` before each place where the text may go on."""

    def move(self, moved: Mapping[int, int]) -> None:
        """Take note of cells whose contents are in others now."""


class CellLayout:
    """The cells of one cache, in their order; those from `top` on are free."""

    def __init__(
        self,
        memory: SequenceMemory,
        n_cells: int,
        spare: int,
        windows: WindowCells | None = None,
    ) -> None:
        """`windows`: the cells in layers that give back what no text sees any more."""
        self.memory = memory
        self.windows = windows
        self.texts: list[Occupant] = []
        self.top = 0
        self.n_moved = 0
        """Tokens that were moved so far."""
        self.n_cells = n_cells
        self._spare = spare
        self._waste: set[int] = set()
        """Cells that the spare sequence keeps from being free."""

    @property
    def n_dropped(self) -> int:
        """Cells that are in nobody's use and not free."""
        return len(self._waste)

    def make_room(self, n_rows: int) -> None:
        """Call before a batch of `n_rows` is placed."""
        n_used = self.top - len(self._waste)
        is_full = self.top + n_rows > self.n_cells
        # in windows dropped cells take memory
        most = MIN_WASTE if self.windows else max(MIN_WASTE, WASTE_SHARE * n_used)
        if self._waste and (is_full or len(self._waste) > most):
            self.put_in_order()
        self.give_back()

    def give_back(self, at_once: bool = False) -> None:
        """Give back the memory of what no text sees in layers with windows."""
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
        """Give up the cells `doomed`, before their labels are removed and when no text counts
        them any more.

        `places` says where they are: of a sequence the cells from a position on, ascending.
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
        """Nothing is in use any more: the cache was cleared."""
        self._waste.clear()
        self.top = 0
        if self.windows:
            self.windows.clear()

    def put_in_order(self) -> None:
        """Move what stands behind dropped cells down, some tokens at a time, and free the rest."""
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
        """Move neighbouring cells to the first free ones. Nothing stands between them, so that
        those are in one piece once they are removed."""
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
    """Cells of neighbouring positions in the same sequences."""

    sequences: tuple[int, ...]
    begin: int
    cells: list[int]

    @property
    def range(self) -> tuple[int, int, int]:
        """One of the sequences, and the positions."""
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
