"""Keeps the cells of all texts in one KV cache in order.

Attention sums over cells in their order, which affects rounding. The cells of a text must therefore
be in the order of its positions; cells of other texts between them do not matter. llama.cpp puts a
batch into the first free cells. To make these always the last ones, a cell that is dropped before
cells that stay is not freed, but moved to the spare sequence, in which nothing is ever decoded. If
there are many such cells, or the cache is full, the cache is compacted.

Attention in tiles sums over each tile of cells, counted from the cache's first one, and omits tiles
that are hidden from all rows. So a prompt rounds as it does alone if each of its tiles is a tile of
cells. Cells before a text's first tile are then filled, in the spare sequence, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.errors import UsageError
from edgespec_runtimes.gguf.context.cache_memory import CacheMemory
from edgespec_runtimes.gguf.context.cell_moves import CellMoves, UsedCell, merged
from edgespec_runtimes.gguf.context.cells import LlamaMemory
from edgespec_runtimes.gguf.context.sequences import Branches
from edgespec_runtimes.gguf.context.windows import WindowCells

MIN_WASTE = 256
"""Dropped cells for which compacting is not worthwhile: attention processes cells in such units."""
SLACK_CELLS = 256
"""Fewest cells whose memory is worth giving back: the next guesses take some of it again."""
WASTE_SHARE = 0.5
"""Largest share of dropped cells, relative to the cells in use."""


class Texts:
    """The texts of one cache, whose cells from `top` on are free. Sequence i belongs to text i;
    further ones are for branches, and the last one is spare."""

    def __init__(
        self,
        n_slots: int,
        n_branches: int,
        n_cells: int,
        memory: LlamaMemory,
        windows: WindowCells | None = None,
        tile: int = 1,
        caches: CacheMemory | None = None,
        on_fill: Callable[[int], object] = lambda _: None,
    ) -> None:
        """A cache of `n_cells` with `n_branches` sequences besides the texts' own.

        `windows` are the cells of sliding-window layers, if they free cells. `tile`: cells of a
        tile of attention, which `make_room` may align; `n_cells` has one more for each text.
        `caches` take memory as cells are filled; `on_fill` is called before the first ones, up to
        a number, have it."""
        self.memory = memory
        self.windows = windows
        self.all: list[Branches] = [Branches(text, self) for text in range(n_slots)]
        self.top = 0
        self.n_moved = 0
        """Number of tokens moved so far."""
        self.n_cells = n_cells
        self.tile = tile
        self._caches = caches
        self._on_fill = on_fill
        self._n_touched = 0
        """Cells from here on take no memory."""
        self._spare = n_slots + n_branches
        self._free = list(range(n_slots, self._spare))[::-1]
        """Empty sequences for branches."""
        self._waste: set[int] = set()
        """Dropped cells in the spare sequence, and filled ones."""
        self._n_filled = 0
        """Number of filled cells, at most."""

    def make_room(self, n_rows: int, reader: Branches | None = None) -> None:
        """Call before a batch of `n_rows` is placed.

        If all of them are read by one text, `reader`, its cells are aligned with tiles.
        """
        n_used = self.top - len(self._waste)
        n_extra = self._n_extra(reader) if reader is not None else 0
        is_full = self.top + n_extra + n_rows > self.n_cells
        # dropped cells take memory in window layers
        most = MIN_WASTE if self.windows else max(MIN_WASTE, WASTE_SHARE * n_used)
        is_wasteful = len(self._waste) - self._n_filled > most
        if (self._waste and (is_full or is_wasteful)) or (is_full and reader is not None):
            self.put_in_order(reader)
        n_extra = self._n_extra(reader) if reader is not None else 0
        self._fill_up_to(self.top + n_extra + n_rows)
        if reader is not None:
            self._align(reader)
        self.give_back()

    def make_room_to_restore(self, n_tokens: int, text: Branches) -> None:
        """Call before the next `n_tokens` of a text are restored."""
        if self.tile > 1:
            self.make_room(n_tokens, text)
        else:
            self.put_in_order()
            self._fill_up_to(self.top + n_tokens)

    def give_back(self, at_once: bool = False) -> None:
        """Free the memory of cells outside all windows in window layers."""
        if self.windows:
            n_kept = self.windows.n_kept
            seen = (cells for text in self.all for cells in text.seen_cells(n_kept))
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
        n_used = 1 + max((text.last_cell for text in self.all), default=-1)
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

    def truncate(self, lengths: Mapping[int, int]) -> None:
        """Shorten the prefixes of some texts and drop their provisional nodes."""
        cuts = [self.all[text].cut(n_tokens) for text, n_tokens in lengths.items()]
        places = [place for cut in cuts for place in cut]
        doomed = {cell for _, _, cells in places for cell in cells}
        if len(self.all) > 1:  # they may share a prefix
            doomed.difference_update(*(text.cells for text in self.all))
        self.drop(doomed, places)
        for text, n_tokens in lengths.items():
            self.all[text].remove_after(n_tokens)
        self.give_back(at_once=True)

    def go_back(self, text: int, most: int) -> None:
        """Shorten a text to `most` tokens, or fewer if window layers have freed the last ones.

        The next text usually begins the same way, so both positions are kept from now on.
        """
        branches = self.all[text]
        n_tokens = branches.reachable(most)
        branches.ends.cut(most)
        branches.ends.add(n_tokens)
        branches.ends.add(most)
        self.truncate({text: n_tokens})

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Let the empty text `target` share the first `n_tokens` of `source`, or fewer if window
        layers have freed the last ones."""
        most, n_tokens = n_tokens, self.all[source].reachable(n_tokens)
        for end in (n_tokens, most):
            self.all[target].ends.add(end)
        self.memory.copy(source, target, 0, n_tokens)
        self.all[target].begin_with(self.all[source].cells[:n_tokens])

    def take_free(self, text: Branches) -> int:
        """An empty sequence for a branch of `text`. Raises UsageError if there is none."""
        if not self._free:
            for other in self.all:
                if other is not text and (sequence := other.spare_branch()) is not None:
                    self.memory.remove(sequence, -1, -1)
                    return sequence
            raise UsageError(f"the trees have more than {self._spare} branches")
        return self._free.pop()

    def clear(self) -> None:
        """Forget all texts: the cache was cleared."""
        for text in self.all:
            self._free += text.forget()
        self._waste.clear()
        self._n_filled = 0
        self.top = 0
        if self.windows:
            self.windows.clear()

    def put_in_order(self, last: Branches | None = None) -> None:
        """Compact the cache: move cells behind dropped ones down, a few tokens at a time.

        If texts are aligned with tiles, each gets cells of its own one after the other, `last` the
        last ones.
        """
        if not self._waste and (self.tile == 1 or last is None):
            return
        begin = min(self._waste, default=0) if self.tile == 1 else 0
        in_use = merged(place for text in self.all for place in text.places_from(begin))
        if not in_use:
            self._free_waste()
            self.top = begin
            return
        order: list[UsedCell | None] = [in_use[cell] for cell in sorted(in_use)]
        if self.tile > 1:
            order = self._by_text(in_use, last)
        example = next(iter(in_use.values()))
        content = self._saved(example) if None in order else None
        self._free_waste()
        longest = max(self.all, key=lambda text: text.n_committed)
        n_tokens = longest.n_committed
        most = self.memory.max_at_once(longest.home, n_tokens) if n_tokens > 1 else 1
        # what is in the way goes behind
        self._fill_up_to(max(self.top, begin + len(order)) + most)
        moves = CellMoves(self.memory, self.windows, order, begin)
        try:
            moves.apply(most, lambda n: self._restore(content, n))
        finally:
            moved = moves.moved
            if moved:
                for text in self.all:
                    text.move(moved)
            self.n_moved += len(moved)
        self.top = begin + len(order)
        self._waste = {begin + n for n, place in enumerate(order) if place is None}
        self._n_filled = len(self._waste)

    def _fill_up_to(self, n_cells: int) -> None:
        """Call before cells up to `n_cells` are written, after which none has content."""
        if self._caches is not None:
            n_cells = min(n_cells, self.n_cells)
            if n_cells + SLACK_CELLS < self._n_touched:
                self._caches.free(n_cells, self._n_touched)
                self._n_touched = n_cells
            self._n_touched = max(self._n_touched, n_cells)
            self._on_fill(self._n_touched)

    def _by_text(
        self, in_use: Mapping[int, UsedCell], last: Branches | None
    ) -> list[UsedCell | None]:
        """All cells in use, text by text, each from the first cell of a tile on."""
        order: list[UsedCell | None] = []
        texts = sorted((t for t in self.all if t is not last), key=lambda t: [*t.all_cells[:1]])
        left = dict(in_use)
        for text in (*texts, *([last] if last is not None else [])):
            # cells that it shares are the first ones of another text, too
            own = [left.pop(cell) for cell in text.all_cells if cell in left]
            if own and not own[0].position % self.tile:
                order += [None] * (-len(order) % self.tile)
            order += own
        return order

    def _align(self, text: Branches) -> None:
        """Place cells of `text` anew that are not in tiles, and fill cells up to its next tile."""
        begin, end = self._first_misplaced(text), text.n_committed
        if begin < end or not end % self.tile:
            self._fill(-self.top % self.tile)
        if begin == end:
            return
        most = self.memory.max_at_once(text.home, end)
        for first in range(begin, end, most):
            self._copy_up(text, first, min(first + most, end))

    def _copy_up(self, text: Branches, begin: int, end: int) -> None:
        """Move tokens of `text` to the first free cells; their old ones are dropped."""
        old = text.cells[begin:end]
        held = self.windows.are_held(old) if self.windows else None
        saved = self.memory.save(text.home, begin, end)
        shared = {cell for other in self.all if other is not text for cell in other.cells}
        n_shared = sum(cell in shared for cell in old)  # the first ones
        if begin + n_shared < end:
            self.memory.copy(text.home, self._spare, begin + n_shared, end)
            self._waste.update(old[n_shared:])
        first, *others = text.let_go(begin, end)
        self.memory.restore(saved, first, begin, end)
        for sequence in others:
            self.memory.copy(first, sequence, begin, end)
        new = [self.append() for _ in old]
        text.cells[begin:end] = new
        if self.windows and held is not None:
            self.windows.move(new, held)
        self.n_moved += len(new)

    def _n_extra(self, text: Branches) -> int:
        """Number of cells that `_align` takes."""
        begin, end = self._first_misplaced(text), text.n_committed
        is_begun = begin < end or not end % self.tile
        return end - begin + (-self.top % self.tile if is_begun else 0)

    def _first_misplaced(self, text: Branches) -> int:
        """First position of `text` that is not in its tile, a multiple of the tile; the number of
        committed tokens if the next cell is in its tile."""
        cells, tile = np.array(text.cells, np.intp), self.tile
        n_tokens = len(cells)
        offsets = cells - np.arange(n_tokens)
        wrong = offsets % tile != 0
        wrong |= offsets != np.repeat(offsets[::tile], tile)[:n_tokens]
        if n_tokens % tile and cells[-1] + 1 != self.top:
            wrong[-1] = True
        return int(np.argmax(wrong)) // tile * tile if wrong.any() else n_tokens

    def _fill(self, n_cells: int) -> None:
        """Fill the next cells, in the spare sequence."""
        if not n_cells:
            return
        used = (place for text in self.all for place in text.places_from(text.last_cell))
        example = next(used, None)
        if example is None:
            self._free_waste()
            self.top = 0
            return
        self._restore(self._saved(example), n_cells)
        self._waste.update(self.append() for _ in range(n_cells))
        self._n_filled += n_cells

    def _saved(self, place: UsedCell) -> tuple[Any, int]:
        """Content of a cell, and its position."""
        position = place.position
        return self.memory.save(place.sequences[0], position, position + 1), position

    def _restore(self, saved: tuple[Any, int] | None, n_cells: int) -> None:
        """Fill the first free cells with a saved one."""
        assert saved is not None
        content, position = saved
        for _ in range(n_cells):
            self.memory.restore(content, self._spare, position, position + 1)

    def _free_waste(self) -> None:
        self.memory.remove(self._spare, -1, -1)
        self._waste.clear()
        self._n_filled = 0
