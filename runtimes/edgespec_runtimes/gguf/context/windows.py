"""Frees the memory of sliding-window layers that is outside all windows.

With `swa_full`, llama.cpp gives these layers as many cells as the others. A ring of cells would
change the order of a text's keys, which affects rounding, and would need space for every sequence
of a tree. Instead cells stay in place, and pages of cells outside all windows are returned to the
system. Such cells read as zeros, which attention masks hide.

Cells before the ends of prompts are kept, too, because the next turn often continues there. Linux
only.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.imports import replaced_import

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
_NO_HUGE_PAGES = 15
"""`MADV_NOHUGEPAGE`."""
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)


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


class _Tensor(NamedTuple):
    """Keys or values of one layer, with one row per cell."""

    address: int
    row_bytes: int


class WindowCells:
    """Tracks which cells of a context's sliding-window layers are held, and frees others."""

    def __init__(self, n_window: int, n_cells: int, n_ends: int) -> None:
        self.n_window = n_window
        self.n_kept = n_window + SLACK_TOKENS
        """Number of cells kept before a text's end."""
        self.n_ends = n_ends
        self.held = np.zeros(n_cells, bool)
        """Cells that were written and not freed, bool [n_cells]."""
        self._tensors: list[_Tensor] = []
        self._buffers: dict[int, tuple[int, int]] = {}
        """Addresses and sizes of llama.cpp's buffers."""
        self._n_new = 0
        self._n_neighbours = 1
        self._madvise = ctypes.CDLL(None).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    @contextmanager
    def captured(self, log_lines: Sequence[str]) -> Iterator[None]:
        """In the block, capture the cache of sliding-window layers that this thread creates.

        `log_lines` are llama.cpp's messages meanwhile.
        """
        base, thread = abi.ggml(), threading.get_ident()
        allocate = _Allocate(_address(base.ggml_backend_alloc_ctx_tensors_from_buft))

        def allocate_and_look(context: int, kind: int) -> int | None:
            buffer: int | None = allocate(context, kind)
            if buffer and threading.get_ident() == thread and is_for_windows(log_lines):
                self._take(context, buffer)
            return buffer

        names = ("ggml_backend_alloc_ctx_tensors_from_buft",)
        with ExitStack() as stack:
            hook = _Allocate(allocate_and_look)
            stack.enter_context(replaced_import(abi.library_path(), names, hook))
            stack.enter_context(self.clearing())
            yield
        self._n_neighbours = 1 + mmap.PAGESIZE // min(
            (t.row_bytes for t in self._tensors), default=1
        )

    @contextmanager
    def clearing(self) -> Iterator[None]:
        """In the block, clearing the cache frees its memory instead of filling it with zeros."""
        clear = _Clear(_address(abi.ggml().ggml_backend_buffer_clear))

        def clear_others(buffer: int, value: int) -> None:
            if buffer in self._buffers and not value:
                self._clear(*self._buffers[buffer])
            else:
                clear(buffer, value)

        names = ("ggml_backend_buffer_clear",)
        with replaced_import(abi.library_path(), names, _Clear(clear_others)):
            yield

    @property
    def is_active(self) -> bool:
        """True if the model has sliding-window layers in the process's memory."""
        return bool(self._tensors)

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

    def take_saved(self, cells: Sequence[int], begin: int, held: Sequence[tuple[int, int]]) -> None:
        """Mark cells as restored from position `begin` on; only positions `held` have content."""
        is_held = np.zeros(len(cells), bool)
        for first, end in held:
            is_held[max(0, first - begin) : max(0, end - begin)] = True
        empty = np.array(cells, np.intp)[~is_held]
        if len(empty):
            self._give_back(empty)

    def clear(self) -> None:
        """Forget all cells: the cache was cleared."""
        self.held[:] = False

    def reachable(self, cells: Sequence[int]) -> int:
        """Length of the longest prefix of a text in `cells` from which decoding can continue."""
        missing = np.flatnonzero(~self.are_held(cells))
        ends = np.append(missing, len(cells))
        before = np.append(-self.n_window, missing)
        return int(ends[before < ends - self.n_window + 1].max())

    def runs_of(self, cells: Sequence[int]) -> list[tuple[int, int]]:
        """Half-open ranges of the held positions of a text."""
        return _runs(np.flatnonzero(self.are_held(cells)))

    def _take(self, context: int, buffer: int) -> None:
        base = abi.ggml()
        first, following = base.ggml_get_first_tensor, base.ggml_get_next_tensor
        for function in (first, following):
            function.restype = ctypes.c_void_p
        tensor = first(ctypes.c_void_p(context))
        while tensor:
            content = abi.GgmlTensor.from_address(tensor)
            if not content.view_src and content.name.startswith((b"cache_k_l", b"cache_v_l")):
                self._tensors.append(_Tensor(content.data, content.nb[1]))
            tensor = following(ctypes.c_void_p(context), ctypes.c_void_p(tensor))
        get_base, get_size = base.ggml_backend_buffer_get_base, base.ggml_backend_buffer_get_size
        get_base.restype, get_size.restype = ctypes.c_void_p, ctypes.c_size_t
        handle = ctypes.c_void_p(buffer)
        begin, size = get_base(handle), get_size(handle)
        self._buffers[buffer] = (begin, size)
        self._advise(begin, begin + size, _NO_HUGE_PAGES)

    def _clear(self, begin: int, size: int) -> None:
        end = begin + size
        first, last = _whole_pages(begin, end)
        if first >= last:
            ctypes.memset(begin, 0, size)
            return
        ctypes.memset(begin, 0, first - begin)
        ctypes.memset(last, 0, end - last)
        self._advise(first, last, mmap.MADV_DONTNEED)

    def _give_back(self, cells: np.ndarray) -> None:
        """Free the pages of these cells and of adjacent freed ones."""
        self.held[cells] = False
        for begin, end in _runs(cells):
            first = begin - self._n_free(range(begin - 1, -1, -1))
            last = end + self._n_free(range(end, len(self.held)))
            for tensor in self._tensors:
                address, row_bytes = tensor
                self._advise(
                    address + first * row_bytes, address + last * row_bytes, mmap.MADV_DONTNEED
                )

    def _n_free(self, cells: range) -> int:
        """Number of leading `cells` that are not held, at most those of a page."""
        for n, cell in enumerate(cells[: self._n_neighbours]):
            if self.held[cell]:
                return n
        return len(cells[: self._n_neighbours])

    def _advise(self, begin: int, end: int, advice: int) -> None:
        first, last = _whole_pages(begin, end)
        if first < last:
            self._madvise(first, last - first, advice)


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


def _whole_pages(begin: int, end: int) -> tuple[int, int]:
    return -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
