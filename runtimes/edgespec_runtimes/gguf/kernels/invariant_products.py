"""Makes products with unpacked weights batch invariant.

ggml has different kernels for one and for several rows: for single and half precision everywhere,
for other types on some processors (Q8_0 on ARM), which is tested. llama.cpp builds its graphs with
`ggml_mul_mat`, which is replaced meanwhile: rows are moved to a further dimension, where each is a
separate product. With half precision, a single row is instead multiplied twice by the kernel for
several rows, which costs nothing with large matrices, unless that kernel's rounding depends on the
number of rows.

A few rows of narrow Q8_0 matrices are moved for speed, where both kernels round alike: the one for
several rows reads four lines of weights side by side, which processors do not prefetch.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple, Self

from edgespec_runtimes.gguf.file.layout import DIFFER, KINDS, MAY_DIFFER, TILED, types_with
from edgespec_runtimes.gguf.kernels.batch_invariance import (
    N_ROWS,
    is_invariant_as_stored,
    is_invariant_from_two_rows,
)
from edgespec_runtimes.gguf.kernels.reference_kernels import PRODUCT_TILE_ROWS
from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.imports import Import

UNQUANTISED = types_with(DIFFER)
HALF = UNQUANTISED - {"F32"}
_SLOW, _FEW_ROWS, _NARROW = "Q8_0", (2, 3, 5), 2048
"""The type whose kernel for several rows is slower than that for one row with these numbers of rows
and matrices of fewer inputs."""

_Maker = Callable[..., int | None]
_Product = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 3)
_View = ctypes.CFUNCTYPE(
    ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, *[ctypes.c_size_t] * 3
)
_ViewOfLines = ctypes.CFUNCTYPE(
    ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4, *[ctypes.c_size_t] * 4
)
_Reshape = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)


class InvariantProducts:
    """Context manager for code that builds graphs of a model: creating contexts, decoding.

    A no-op if no weights need it. Graphs of other threads are not changed.
    """

    def __init__(self, weight_types: Collection[str], packed: Collection[int] = ()) -> None:
        """`weight_types` are the types of the model's matrices, `packed` the addresses of tensors
        that are packed when used."""
        self.packed = packed
        varying = {KINDS[name].code for name in weight_types if varies_as_stored(name)}
        halves = varying & {KINDS[name].code for name in HALF}
        self.in_pairs = {kind for kind in halves if is_invariant_from_two_rows(kind)}
        """Types with which a single row is multiplied twice."""
        self.apart = varying - self.in_pairs
        """Types with which rows are multiplied one by one."""
        self._hook = _hook() if varying or _SLOW in weight_types else None

    def __enter__(self) -> Self:
        if self._hook is not None:
            self._hook.users[threading.get_ident()] = self
            self._hook.product.replace()
        return self

    def __exit__(self, *error: object) -> None:
        if self._hook is not None:
            self._hook.product.put_back()
            self._hook.users.pop(threading.get_ident(), None)


def can_replace_products() -> bool:
    """True if llama.cpp's imports can be replaced on this platform."""
    return _hook().product.found


def varies_as_stored(name: str) -> bool:
    """True if products with unpacked weights of this type are not batch invariant.

    K-quants' tiles do not count; `reference_kernels` switches them.
    """
    code, kernels = KINDS[name].code, KINDS[name].kernels
    n_rows = PRODUCT_TILE_ROWS - 1 if TILED in kernels else N_ROWS
    return DIFFER in kernels or (MAY_DIFFER in kernels and not is_invariant_as_stored(code, n_rows))


class _ProductHook(NamedTuple):
    """The function that llama.cpp calls in place of `ggml_mul_mat`, once in a process."""

    product: Import
    users: dict[int, InvariantProducts]
    """Those that threads are inside of."""


_creating = threading.Lock()


def _hook() -> _ProductHook:
    with _creating:
        return _new_hook()


@functools.cache
def _new_hook() -> _ProductHook:
    users: dict[int, InvariantProducts] = {}
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

    return _ProductHook(Import(abi.library_path(), ("ggml_mul_mat",), _Product(product)), users)


def _is_matrix(weights: int) -> bool:
    """True if a tensor is a stored matrix of the model, not computed and not a stack."""
    fields = abi.GgmlTensor.from_address(weights)
    is_leaf = not fields.op and not fields.view_src and not fields.extra
    is_flat = fields.ne[2] * fields.ne[3] == 1
    return bool(is_leaf and is_flat and fields.name.endswith(b".weight"))
