"""Switches ggml to its reference kernels, which sum all rows in the same order, when needed.

ggml's attention has three kernels: for whole rows; in tiles, for 64 rows and more; and with a
single row's cells split over threads, from 512 cells on. All three are used if keys and values have
single or half precision, since llama.cpp rounds single precision to half before. Products with
K-quants have two kernels: for whole rows, and in tiles, for 8 rows and more. Their logits differ by
tenths. The backend's switch for reference kernels leaves only those for whole rows. llama.cpp does
not expose it, so the backend is captured when a context creates it.

It also changes the kernel that rotates keys and values before they are quantised for the cache, so
all rows that are not in tiles have it on then, a single one, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgespec_runtimes.gguf.file.layout import TILED, types_with
from edgespec_runtimes.gguf.llama.imports import replaced_import

TILE_ROWS = 64
"""Number of rows from which on attention is computed in tiles."""
PRODUCT_TILE_ROWS = 8
"""Number of rows from which on products with `TILED_TYPES` are computed in tiles."""
TILED_TYPES = types_with(TILED)
TILED_CACHE_TYPES = frozenset({"f16", "f32"})
"""Types of keys and values whose attention has several kernels."""
SPLIT_CELLS = 512
"""Number of cells from which on a single row is split over threads."""
CELLS_ROUNDED_TO = 256
"""Granularity of a graph's number of cells."""
MIN_TILED_BATCH = 2 * TILE_ROWS
"""Smallest batch limit, in tokens, with which the even parts of a prompt round the same: no part is
smaller than a tile, unless the prompt is."""

_InitFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class ReferenceKernels:
    """Switches the CPU backends of one context to reference kernels and back.

    A no-op if no backend was captured.
    """

    def __init__(
        self,
        libggml_cpu: Any,
        backends: Sequence[int],
        cache_types: Collection[str],
        weight_types: Collection[str],
        beside: Collection[int] = (),
    ):
        """`backends` are the captured ones, of which the last is the context's; backends `beside`
        it compute further products of its graph. Keys and values of other types than single or half
        precision have one kernel, and so have other weights."""
        self._has_tiled_products = not TILED_TYPES.isdisjoint(weight_types)
        self._attention_varies = {*cache_types} <= TILED_CACHE_TYPES
        self._is_rotated = not {*cache_types} <= {"f16", "f32", "bf16"}
        is_needed = bool(backends) and (self._attention_varies or self._has_tiled_products)
        self._backends = [*map(ctypes.c_void_p, (backends[-1], *beside))] if is_needed else []
        self._is_reference: bool | None = None
        """The latest choice."""
        self._set_reference = libggml_cpu.ggml_backend_cpu_set_use_ref

    def prompt_tile(self, is_wanted: bool) -> int:
        """Number of tokens from which on a prompt is computed in tiles, 0 for none: they are used
        if they are wanted, or if nothing can be switched."""
        varies = self._has_tiled_products or self._attention_varies
        return TILE_ROWS if (is_wanted if self._backends else varies) else 0

    def prepare(self, n_rows: int, n_cells: int, in_tiles: bool) -> None:
        """Switch kernels before rows that attend to up to `n_cells` cells are computed.

        All rows are summed in the same order, unless tiles are allowed. If tiles would be used for
        all rows anyway, the switch stays off, because it has other effects.
        """
        if self._backends:
            is_split = n_rows == 1 and n_cells > SPLIT_CELLS - CELLS_ROUNDED_TO
            tiled = n_rows >= TILE_ROWS and not in_tiles
            attention = self._attention_varies and (is_split or tiled)
            is_switched = n_rows >= PRODUCT_TILE_ROWS or self._is_rotated
            products = self._has_tiled_products and is_switched and not in_tiles
            if self._is_reference is not (attention or products):
                self._is_reference = attention or products
                for backend in self._backends:
                    self._set_reference(backend, ctypes.c_bool(self._is_reference))


@contextmanager
def captured_backends(libllama_path: str, libggml: Any) -> Iterator[list[int]]:
    """Yield a list that collects the CPU backends that libllama creates in the block."""
    captured: list[int] = []
    real = ctypes.cast(libggml.ggml_backend_init_by_type, _InitFunction)

    def init(kind: int, parameters: bytes | None) -> int | None:
        backend: int | None = real(kind, parameters)
        if backend:
            captured.append(backend)
        return backend

    with replaced_import(libllama_path, ("ggml_backend_init_by_type",), _InitFunction(init)):
        yield captured
