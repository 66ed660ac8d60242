"""Has ggml sum a row's products and attention in one order, whatever rows are computed with it.

ggml's attention has three kernels: for whole rows; in tiles, for 64 rows and more; and with a
single row's cells split over threads, from 512 cells on. All three are used if keys and values have
single or half precision, since llama.cpp rounds single precision to half before. Products with
K-quants have two kernels: for whole rows, and in tiles, for 8 rows and more. Their logits differ by
tenths. The backend's switch for reference kernels leaves only those for whole rows. llama.cpp does
not expose it, so the backend is captured when a context creates it. The switch also changes the
kernel that rotates keys and values before they are quantised for the cache, so all rows that are
not in tiles have it on then, a single one, too.

Products with other unpacked weights have different kernels for one and for several rows: for single
and half precision everywhere, for other types on some processors (Q8_0 on ARM), which is tested.
llama.cpp builds its graphs with `ggml_mul_mat`, which is replaced meanwhile: rows are moved to a
further dimension, where each is a separate product. With half precision, a single row is instead
multiplied twice by the kernel for several rows, which costs nothing with large matrices, unless
that kernel's rounding depends on the number of rows.

A few rows of narrow Q8_0 matrices are moved for speed, where both kernels round alike: the one for
several rows reads four lines of weights side by side, which processors do not prefetch.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from edgespec_runtimes.gguf.file.layout import DIFFER, KINDS, MAY_DIFFER, TILED, types_with
from edgespec_runtimes.gguf.kernels.batch_invariance import (
    N_ROWS,
    is_invariant_as_stored,
    is_invariant_from_two_rows,
)
from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.imports import import_entries, replaced_import

TILE_ROWS = 64
"""Number of rows from which on attention is computed in tiles."""
PRODUCT_TILE_ROWS = 8
"""Number of rows from which on products with `TILED_TYPES` are computed in tiles."""
TILED_TYPES, UNQUANTISED = types_with(TILED), types_with(DIFFER)
HALF = UNQUANTISED - {"F32"}
TILED_CACHE_TYPES = frozenset({"f16", "f32"})
"""Types of keys and values whose attention has several kernels."""
SPLIT_CELLS = 512
"""Number of cells from which on a single row is split over threads."""
CELLS_ROUNDED_TO = 256
"""Granularity of a graph's number of cells."""
MIN_TILED_BATCH = 2 * TILE_ROWS
"""Smallest batch limit, in tokens, with which the even parts of a prompt round the same: no part is
smaller than a tile, unless the prompt is."""
_SLOW, _FEW_ROWS, _NARROW = "Q8_0", (2, 3, 5), 2048
"""The type whose kernel for several rows is slower than that for one row with these numbers of rows
and matrices of fewer inputs."""

_Init = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_Switch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_bool)
_Maker = Callable[..., int | None]
_Product = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 3)
_View = ctypes.CFUNCTYPE(
    ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, *[ctypes.c_size_t] * 3
)
_ViewOfLines = ctypes.CFUNCTYPE(
    ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4, *[ctypes.c_size_t] * 4
)
_Reshape = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)


class InvariantKernels:
    """The kernels of one context, and a context manager for code that builds its graphs.

    Graphs of other threads are not changed.
    """

    def __init__(
        self,
        weight_types: Collection[str],
        cache_types: Collection[str],
        packed: Collection[int] = (),
    ) -> None:
        """`weight_types` are the types of the model's matrices, `packed` the addresses of tensors
        that are packed when used."""
        self.packed = packed
        varying = {KINDS[name].code for name in weight_types if varies_as_stored(name)}
        halves = varying & {KINDS[name].code for name in HALF}
        self.in_pairs = {kind for kind in halves if is_invariant_from_two_rows(kind)}
        """Types with which a single row is multiplied twice."""
        self.apart = varying - self.in_pairs
        """Types with which rows are multiplied one by one."""
        with _changing:
            self._hook = _hook() if varying or _SLOW in weight_types else None
        self._has_tiled_products = not TILED_TYPES.isdisjoint(weight_types)
        self._attention_varies = {*cache_types} <= TILED_CACHE_TYPES
        self._is_rotated = not {*cache_types} <= {"f16", "f32", "bf16"}
        self._backends: list[int] = []
        self._is_reference: bool | None = None
        """The latest choice."""
        self._set_reference = _Switch(ggml.cpu_function(b"ggml_backend_cpu_set_use_ref"))

    def __enter__(self) -> Self:
        if self._hook is not None:
            with _changing:
                self._hook.users[threading.get_ident()] = self
                for entry in self._hook.entries:
                    entry.value = self._hook.address
        return self

    def __exit__(self, *error: object) -> None:
        if self._hook is not None:
            with _changing:
                self._hook.users.pop(threading.get_ident(), None)
                if not self._hook.users:
                    for entry, value in zip(self._hook.entries, self._hook.before, strict=True):
                        entry.value = value

    @contextmanager
    def creating(self, beside: Sequence[int] = ()) -> Iterator[None]:
        """Context manager for creating the context; backends `beside` it compute further products
        of its graph."""
        captured: list[int] = []

        def init(real: _Maker, kind: int, parameters: bytes | None) -> int | None:
            if backend := real(kind, parameters):
                captured.append(backend)
            return backend

        names, owner = ("ggml_backend_init_by_type",), abi.library("ggml")
        with self, replaced_import(abi.library_path(), names, _Init, init, owner):
            yield
        if captured and (self._attention_varies or self._has_tiled_products):
            self._backends = [captured[-1], *beside]

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
                    self._set_reference(backend, self._is_reference)


def can_replace_products() -> bool:
    """True if llama.cpp's imports can be replaced on this platform."""
    with _changing:
        return bool(_hook().entries)


def varies_as_stored(name: str) -> bool:
    """True if products with unpacked weights of this type are not batch invariant.

    K-quants' tiles do not count; the switch for reference kernels leaves them out.
    """
    code, kernels = KINDS[name].code, KINDS[name].kernels
    n_rows = PRODUCT_TILE_ROWS - 1 if TILED in kernels else N_ROWS
    return DIFFER in kernels or (MAY_DIFFER in kernels and not is_invariant_as_stored(code, n_rows))


class _ProductHook(NamedTuple):
    """The function that llama.cpp calls in place of `ggml_mul_mat`, once in a process."""

    product: object
    address: int
    entries: Sequence[ctypes.c_uint64]
    before: Sequence[int]
    """Values of the entries without it."""
    users: dict[int, InvariantKernels]
    """Those that threads are inside of."""


_changing = threading.RLock()


@functools.cache
def _hook() -> _ProductHook:
    users: dict[int, InvariantKernels] = {}
    base = abi.ggml()
    multiply: _Maker = ctypes.cast(base.ggml_mul_mat, _Product)
    view: _Maker = ctypes.cast(base.ggml_view_3d, _View)
    view_of_lines: _Maker = ctypes.cast(base.ggml_view_4d, _ViewOfLines)
    reshape: _Maker = ctypes.cast(base.ggml_reshape_3d, _Reshape)
    slow = KINDS[_SLOW].code

    def product(context: int, weights: int, rows: int) -> int | None:
        kind: int = ctypes.c_int.from_address(weights).value
        user = users.get(threading.get_ident())
        if user is None:
            return multiply(context, weights, rows)
        is_slow, in_pairs, is_apart = kind == slow, kind in user.in_pairs, kind in user.apart
        changes = is_apart or in_pairs or is_slow
        if not changes or weights in user.packed or not _is_matrix(weights):
            return multiply(context, weights, rows)
        right = abi.GgmlTensor.from_address(rows)
        n_in, n_rows, n_lines, row_bytes = right.ne[0], right.ne[1], right.ne[2], right.nb[1]
        if n_lines > 1:  # several lines have several rows each
            in_pairs = is_slow = False
        is_apart |= (
            is_slow and n_in < _NARROW and n_rows in _FEW_ROWS and abi.is_in_host_memory(weights)
        )
        if right.ne[3] != 1 or right.type != ggml.F32 or not (is_apart or in_pairs):
            return multiply(context, weights, rows)
        n_out = abi.GgmlTensor.from_address(weights).ne[1]
        if is_apart:
            line_bytes = right.nb[2]
            shape, steps = (n_in, 1, n_rows, n_lines), (row_bytes, row_bytes, line_bytes)
            apart = view_of_lines(context, rows, *shape, *steps, 0)
            return reshape(context, multiply(context, weights, apart), n_out, n_rows, n_lines)
        # the graph has the same nodes for one and several rows, so its memory is the same
        doubled = view(context, rows, n_in, n_rows, 1, row_bytes, row_bytes * n_rows, 0)
        if n_rows == 1:
            assert doubled is not None
            fields = abi.GgmlTensor.from_address(doubled)
            fields.ne[1], fields.nb[1] = 2, 0
        products = multiply(context, weights, doubled)
        return view(context, products, n_out, n_rows, 1, 4 * n_out, 4 * n_out * n_rows, 0)

    replacement = _Product(product)
    address = ctypes.cast(replacement, ctypes.c_void_p).value or 0
    entries = import_entries(abi.library_path(), ("ggml_mul_mat",))
    before = [entry.value for entry in entries]
    return _ProductHook(replacement, address, entries, before, users)


def _is_matrix(weights: int) -> bool:
    """True if a tensor is a stored matrix of the model, not computed and not a stack."""
    fields = abi.GgmlTensor.from_address(weights)
    is_leaf = not fields.op and not fields.view_src and not fields.extra
    is_flat = fields.ne[2] * fields.ne[3] == 1
    return bool(is_leaf and is_flat and fields.name.endswith(b".weight"))
