"""Frees the memory of sliding-window layers that is outside all windows.

With `swa_full`, llama.cpp gives these layers as many cells as the others. A ring of cells would
change the order of a text's keys, which affects rounding, and would need space for every sequence
of a tree. Instead cells stay in place, and pages of cells outside all windows are returned to the
system. Such cells read as zeros, which attention masks hide.

Cells before the ends of prompts are kept, too, because the next turn often continues there. Linux
only.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from edgespec_runtimes.gguf.context.cache_memory import CacheMemory

SLACK_TOKENS = 128
"""Tokens kept before a window, because the next prompt may omit a few at the end of a text."""
MAX_ENDS = 4
"""Most prompt ends with kept cells: a prompt may omit several tool calls."""
ENDS_SHARE = 1 / 8
"""Largest share of the context for cells before prompt ends; one end is always kept."""
STEP_CELLS = 64
"""Number of written cells after which memory is freed."""

_SWA_CACHE = "creating     SWA KV cache"
_CACHE = ("KV cache", "creating")


def is_supported() -> bool:
    """True if freed pages read as zeros on this system."""
    return sys.platform == "linux"


def n_ends(n_window: int, n_ctx: int) -> int:
    """Number of prompt ends per text with kept cells."""
    most = int(n_ctx * ENDS_SHARE) // (n_window + SLACK_TOKENS)
    return min(MAX_ENDS, max(1, most))


def is_for_windows(log_lines: Sequence[str]) -> bool:
    """True if, by its log, llama.cpp is creating the cache of sliding-window layers."""
    made = [line for line in log_lines if all(word in line for word in _CACHE)]
    return bool(made) and _SWA_CACHE in made[-1]


class WindowShape(NamedTuple):
    """Sizes that determine the memory of sliding-window layers."""

    n_window: int
    """Window size in tokens."""
    n_ctx: int
    n_slots: int
    n_loose: int
    """Most unused cells between cells in use."""
    n_batch: int
    """Rows of the largest batch."""

    @property
    def n_runs(self) -> int:
        """Number of positions of a text before which cells are kept."""
        return 1 + n_ends(self.n_window, self.n_ctx)

    @property
    def n_seen(self) -> int:
        """Number of kept cells, including unused ones between them."""
        return self.n_slots * self.n_runs * (self.n_window + SLACK_TOKENS) + self.n_loose

    @property
    def n_latest(self) -> int:
        """Most cells written between two times that memory is freed."""
        return STEP_CELLS + self.n_batch

    def planned_bytes(self, n_cells: int, n_layers: int, total_bytes: int) -> int:
        """Most resident bytes of caches of `n_cells` cells with `total_bytes` for all layers."""
        n_tensors = 2 * n_layers
        row_bytes = max(1, total_bytes // max(1, n_tensors * n_cells))
        page = mmap.PAGESIZE
        # cells of several texts may alternate
        seen_bytes = self.n_seen * (max(row_bytes, page) if self.n_slots > 1 else row_bytes)
        of_tensor = seen_bytes + self.n_latest * row_bytes + 2 * page * (self.n_runs + 1)
        return min(total_bytes, n_tensors * of_tensor)


class WindowCells(CacheMemory):
    """Tracks which cells of a context's sliding-window layers are held, and frees others."""

    def __init__(self, n_window: int, n_cells: int, n_ends: int) -> None:
        super().__init__(is_for_windows)
        self.n_window = n_window
        self.n_kept = n_window + SLACK_TOKENS
        """Number of cells kept before a text's end."""
        self.n_ends = n_ends
        self.held = np.zeros(n_cells, bool)
        """Cells that were written and not freed, bool [n_cells]."""
        self._n_new = 0

    def write(self, cell: int) -> None:
        """Mark a cell as written."""
        self.held[cell] = True
        self._n_new += 1

    def are_held(self, cells: Iterable[int]) -> np.ndarray:
        """True for each of `cells` that is held, bool [len(cells)]."""
        return self.held[np.array([*cells], np.intp)]

    def move(self, cells: Sequence[int], held: np.ndarray) -> None:
        """Mark ascending `cells` as moved: they are held where `held`, otherwise zeros."""
        empty = np.array(cells, np.intp)[~held]
        if len(empty):
            self._give_back(empty)

    def give_back(self, seen: Iterable[Collection[int]], at_once: bool = False) -> None:
        """Free all cells except those `seen`, if enough were written since the last time."""
        if self._n_new < STEP_CELLS and not at_once:
            return
        self._n_new = 0
        unseen = self.held.copy()
        for cells in seen:
            unseen[np.fromiter(cells, np.intp, len(cells))] = False
        self._give_back(np.flatnonzero(unseen))

    def clear(self) -> None:
        """Forget all cells: the cache was cleared."""
        self.held[:] = False

    def reachable(self, cells: Sequence[int]) -> int:
        """Length of the longest prefix of a text in `cells` from which decoding can continue."""
        missing = np.flatnonzero(~self.are_held(cells))
        ends = np.append(missing, len(cells))
        before = np.append(-self.n_window, missing)
        return int(ends[before < ends - self.n_window + 1].max())

    def _give_back(self, cells: np.ndarray) -> None:
        """Free the pages of these cells and of adjacent freed ones."""
        self.held[cells] = False
        for begin, end in _runs(cells):
            first = begin - self._n_free(range(begin - 1, -1, -1))
            last = end + self._n_free(range(end, len(self.held)))
            self.free(first, last)

    def _n_free(self, cells: range) -> int:
        """Number of leading `cells` that are not held, at most those of a page."""
        neighbours = cells[: self._cells_per_page]
        return next((n for n, cell in enumerate(neighbours) if self.held[cell]), len(neighbours))

    @cached_property
    def _cells_per_page(self) -> int:
        return 1 + mmap.PAGESIZE // min((t.row_bytes for t in self.tensors), default=1)


class PromptEnds:
    """Positions where prompts of a text ended or diverged."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self._ends)

    def add(self, n_tokens: int) -> None:
        """Add a position; if there are too many, drop the one whose loss costs the fewest
        tokens."""
        if not self._most or not n_tokens or n_tokens in self._ends:
            return
        if len(self._ends) == self._most:
            self._ends.remove(least_useful(self._ends))
        self._ends = sorted((*self._ends, n_tokens))

    def remove(self, n_tokens: int) -> None:
        self._ends = [end for end in self._ends if end != n_tokens]

    def cut(self, n_tokens: int) -> None:
        """Drop positions after `n_tokens`."""
        self._ends = [end for end in self._ends if end <= n_tokens]


def least_useful(ends: Iterable[int]) -> int:
    """The one of ascending `ends` whose loss costs the fewest tokens to read again."""
    before, distance = 0, {}
    for end in ends:
        distance[end], before = end - before, end
    return min(distance, key=distance.__getitem__)


def _runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive ascending numbers."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    parts = np.split(numbers, breaks)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]
