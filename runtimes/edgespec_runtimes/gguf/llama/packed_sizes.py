"""What weights take in the buffers in which llama.cpp packs them for the CPU.

It asks ggml, with tensors that have a shape and no memory. Which tensors a model has, and whether
they are packed at all, is not known here.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import ExitStack
from typing import Any

from edgespec_runtimes.gguf.llama import abi

_CPU, _F32 = 0, 0
"""`GGML_BACKEND_DEVICE_TYPE_CPU` and `GGML_TYPE_F32`."""


class _InitParams(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


@functools.cache
def packed_bytes(kind: int, n_in: int, n_out: int) -> int | None:
    """Of weights [n_out, n_in] of a ggml type that multiply; None if they stay as they are."""
    for buffer_type in _packing_buffer_types():
        with ExitStack() as owned:
            context = _address("ggml_init", _InitParams(1 << 16, None, True))
            owned.callback(_address, "ggml_free", context)
            buffer = _address("ggml_backend_buft_alloc_buffer", buffer_type, ctypes.c_size_t(0))
            owned.callback(_address, "ggml_backend_buffer_free", buffer)
            weights = _tensor(context, kind, n_in, n_out)
            abi.GgmlTensor.from_address(weights).buffer = buffer
            product = _address("ggml_mul_mat", context, weights, _tensor(context, _F32, n_in, 512))
            if _call(ctypes.c_bool, "ggml_backend_dev_supports_op", _device(), product):
                size = "ggml_backend_buft_get_alloc_size"
                return int(_call(ctypes.c_size_t, size, buffer_type, weights))
    return None


@functools.cache
def _device() -> int:
    return _address("ggml_backend_dev_by_type", ctypes.c_int(_CPU))


@functools.cache
def _packing_buffer_types() -> tuple[int, ...]:
    """What llama.cpp calls extra buffer types, in the order in which it prefers them."""
    registry = _address("ggml_backend_dev_backend_reg", _device())
    name = b"ggml_backend_dev_get_extra_bufts"
    address = _address("ggml_backend_reg_get_proc_address", registry, name)
    if not address:
        return ()
    ask = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    types, found = ask(_device()), list[int]()
    while types and types[len(found)]:
        found.append(types[len(found)])
    return tuple(found)


def _tensor(context: int, kind: int, n_in: int, n_rows: int) -> int:
    sizes = ctypes.c_int64(n_in), ctypes.c_int64(n_rows)
    return _address("ggml_new_tensor_2d", context, ctypes.c_int(kind), *sizes)


def _address(name: str, *args: Any) -> int:
    return _call(ctypes.c_void_p, name, *args) or 0


def _call(restype: Any, name: str, *args: Any) -> Any:
    """Call a function of ggml's; whole numbers are addresses."""
    library = next(library for library in _libraries() if hasattr(library, name))
    function = getattr(library, name)
    function.restype = restype
    return function(*(ctypes.c_void_p(arg) if isinstance(arg, int) else arg for arg in args))


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Handles of our own: what functions return is set on them."""
    return tuple(ctypes.CDLL(str(abi.library_file(stem))) for stem in ("ggml-base", "ggml"))
