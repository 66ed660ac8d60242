"""The switch to ggml's reference kernels, which sum up all rows in one order, and when to use it.

ggml's attention has three kernels: one of whole rows; one of tiles, for 64 rows and more; one that
splits a single row's cells over the threads, from 512 cells on. Keys and values of one type, single
or half precision, go through any of them. Its products with K-quants have two: one of whole rows;
one of tiles, for 8 rows and more. The logits differ by tenths. The backend's switch for reference
kernels leaves the first ones only. It is not reached through llama.cpp's interface: the backend is
captured when a context makes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgespec_runtimes.gguf.llama.imports import replaced_import

TILE_ROWS = 64
"""Rows from which on attention is computed in tiles."""
PRODUCT_TILE_ROWS = 8
"""Rows from which on products with `TILED_TYPES` are computed in tiles."""
TILED_TYPES = frozenset(
    {f"Q{n_bits}_K" for n_bits in range(2, 7)}
    | {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"}
)
SPLIT_CELLS = 512
"""Cells from which on a single row is split over the threads."""
CELLS_ROUNDED_TO = 256
"""Granularity of a graph's number of cells."""
MIN_TILED_BATCH = 2 * TILE_ROWS
"""Smallest limit of a batch, in tokens, with which prompts in even parts round alike: no part is
smaller than a tile, unless the prompt is."""

_InitFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class ReferenceKernels:
    """Switches the CPU backend of one context, and others that compute products of its graph, to
    reference kernels and back; does nothing if no backend was captured."""

    def __init__(
        self,
        libggml_cpu: Any,
        backends: Sequence[int],
        cache_types: Collection[str],
        weight_types: Collection[str],
        beside: Collection[int] = (),
    ):
        """`backends` are the captured ones; the last one is the context's. Backends `beside`
        it compute products as it does. Keys and values of other types than single or half precision
        have one kernel, as other weights have."""
        self._has_tiled_products = not TILED_TYPES.isdisjoint(weight_types)
        self._attention_varies = len(set(cache_types)) == 1 and bool(
            {"f16", "f32"} & {*cache_types}
        )
        is_needed = bool(backends) and (self._attention_varies or self._has_tiled_products)
        self._backends = [*map(ctypes.c_void_p, (backends[-1], *beside))] if is_needed else []
        self._set_reference = libggml_cpu.ggml_backend_cpu_set_use_ref

    @property
    def prompt_tile(self) -> int:
        """Tokens from which on a prompt goes through tiles: where products have some, since they
        are several times as fast, and where nothing can be switched. Elsewhere it saves more to
        have all tokens round alike."""
        needs_tiles = self._has_tiled_products or (self._attention_varies and not self._backends)
        return TILE_ROWS if needs_tiles else 0

    def prepare(self, n_rows: int, n_cells: int, in_tiles: bool) -> None:
        """Call before rows are computed that see up to `n_cells` cells: all sum up alike, unless
        they may go through tiles. Where they do so anyway the switch, which has other effects,
        stays off."""
        if self._backends:
            is_split = n_rows == 1 and n_cells > SPLIT_CELLS - CELLS_ROUNDED_TO
            tiled = n_rows >= TILE_ROWS and not in_tiles
            attention = self._attention_varies and (is_split or tiled)
            products = self._has_tiled_products and n_rows >= PRODUCT_TILE_ROWS and not in_tiles
            for backend in self._backends:
                self._set_reference(backend, ctypes.c_bool(attention or products))


@contextmanager
def captured_backends(libllama_path: str, libggml: Any) -> Iterator[list[int]]:
    """Yields a list of the CPU backends that libllama makes while this is active."""
    captured: list[int] = []
    real = ctypes.cast(libggml.ggml_backend_init_by_type, _InitFunction)

    def init(kind: int, parameters: bytes | None) -> int | None:
        backend: int | None = real(kind, parameters)
        if backend:
            captured.append(backend)
        return backend

    with replaced_import(libllama_path, ("ggml_backend_init_by_type",), _InitFunction(init)):
        yield captured
