"""Products with single- and half-precision weights that round alike, however many rows they have.

ggml multiplies several rows of such weights by another kernel than one row. llama.cpp builds its
graphs through `ggml_mul_mat`: while a graph is built, rows of single precision are laid into the
third dimension, where each is a product of its own; of half precision a row that is alone is
multiplied twice, by the kernel of several rows, which costs a large matrix nothing. Where that
kernel does not round alike for all numbers of rows, half precision goes row by row, too.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self

from edgespec_runtimes.gguf.llama import abi, ggml
from edgespec_runtimes.gguf.llama.batch_invariance import is_invariant_from_two_rows
from edgespec_runtimes.gguf.llama.imports import Import

HALF = ("F16", "BF16")
KINDS = {"F32": ggml.F32, "F16": ggml.F16, "BF16": ggml.BF16}
"""ggml's numbers of the types whose products are changed."""

_Maker = Callable[..., int | None]
_Product = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 3)
_View = ctypes.CFUNCTYPE(
    ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, *[ctypes.c_size_t] * 3
)
_Reshape = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)


class InvariantProducts:
    """A context manager around code that builds graphs of a model: new contexts, decoding.

    Idle if no weights are of such a type; graphs that other threads build meanwhile stay as
    they are.
    """

    def __init__(self, weight_types: Collection[str]) -> None:
        """`weight_types`: the types of the matrices that rows are multiplied with."""
        is_active = not KINDS.keys().isdisjoint(weight_types)
        self._import = _product_import() if is_active else None
        for name in sorted(set(HALF).intersection(weight_types)):
            if is_invariant_from_two_rows(KINDS[name]):
                _in_pairs.add(KINDS[name])

    def __enter__(self) -> Self:
        if self._import is not None:
            _building.add(threading.get_ident())
            self._import.replace()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._import is not None:
            self._import.put_back()
            _building.discard(threading.get_ident())


def can_replace_products() -> bool:
    """True if llama.cpp's calls can be replaced on this platform."""
    return _product_import().found


_creating = threading.Lock()
_building: set[int] = set()
"""Threads that build graphs inside `InvariantProducts` now."""
_in_pairs: set[int] = set()
"""Types with which a single row is multiplied as a pair of itself; others go row by row."""


def _product_import() -> Import:
    with _creating:
        return _new_import()


@functools.cache
def _new_import() -> Import:
    base = abi.ggml()
    multiply: _Maker = ctypes.cast(base.ggml_mul_mat, _Product)
    view: _Maker = ctypes.cast(base.ggml_view_3d, _View)
    reshape: _Maker = ctypes.cast(base.ggml_reshape_2d, _Reshape)
    kinds = frozenset(KINDS.values())

    def product(context: int, weights: int, rows: int) -> int | None:
        kind: int = ctypes.c_int.from_address(weights).value
        if kind not in kinds or threading.get_ident() not in _building or not _is_matrix(weights):
            return multiply(context, weights, rows)
        right = abi.GgmlTensor.from_address(rows)
        if right.ne[2] * right.ne[3] != 1 or right.type != ggml.F32:
            return multiply(context, weights, rows)
        n_in, n_rows, row_bytes = right.ne[0], right.ne[1], right.nb[1]
        n_out = abi.GgmlTensor.from_address(weights).ne[1]
        if kind not in _in_pairs:
            apart = view(context, rows, n_in, 1, n_rows, row_bytes, row_bytes, 0)
            return reshape(context, multiply(context, weights, apart), n_out, n_rows)
        # with one row and with several the graph has the same nodes, so that its memory stays
        doubled = view(context, rows, n_in, n_rows, 1, row_bytes, row_bytes * n_rows, 0)
        if n_rows == 1:
            assert doubled is not None
            fields = abi.GgmlTensor.from_address(doubled)
            fields.ne[1], fields.nb[1] = 2, 0
        products = multiply(context, weights, doubled)
        return view(context, products, n_out, n_rows, 1, 4 * n_out, 4 * n_out * n_rows, 0)

    return Import(abi.library_path(), ("ggml_mul_mat",), _Product(product))


def _is_matrix(weights: int) -> bool:
    """True if a tensor is a model's own, not computed, and no stack of matrices."""
    fields = abi.GgmlTensor.from_address(weights)
    is_leaf = not fields.op and not fields.view_src
    is_flat = fields.ne[2] * fields.ne[3] == 1
    return bool(is_leaf and is_flat and fields.name.endswith(b".weight"))
