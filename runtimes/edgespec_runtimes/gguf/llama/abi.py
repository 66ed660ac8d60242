"""Access to llama.cpp's tensors and library files, which llama-cpp-python does not wrap.

Tensors are read at their addresses through a mirror of their struct. Opens no model.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.llama import log
from edgespec_runtimes.gguf.llama.bindings import lib

_MAX_NAME = 64


class GgmlTensor(ctypes.Structure):
    """Mirror of `struct ggml_tensor` (ggml.h), verified by `ggml.verify_mirror`."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * _MAX_NAME),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    ]


class InitParams(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


OP_OFFSET = GgmlTensor.op.offset
SRC_OFFSET = GgmlTensor.src.offset
DATA_OFFSET = GgmlTensor.data.offset
STACK_STRIDE_OFFSET = GgmlTensor.nb.offset + 2 * ctypes.sizeof(ctypes.c_size_t)
NAME_OFFSET = GgmlTensor.name.offset


def name_of(tensor: int) -> bytes:
    """The name of the tensor at an address."""
    return ctypes.string_at(tensor + NAME_OFFSET)


@functools.lru_cache(maxsize=64)
def float_rows(address: int, n_rows: int, n_values: int) -> np.ndarray:
    """A view of a float32 matrix in llama.cpp's memory, [n_rows, n_values]. It is kept, because
    creating one takes as long as copying many rows."""
    content: Any = (ctypes.c_float * (n_rows * n_values)).from_address(address)
    return np.frombuffer(content, np.float32).reshape(n_rows, n_values)


def values_of(tensor: int, kind: type) -> np.ndarray:
    """The elements of a tensor in host memory, of this kind of numbers, not a copy: [ne[3], ne[2],
    ne[1], ne[0]]."""
    fields = GgmlTensor.from_address(tensor)
    shape, strides = tuple(fields.ne)[::-1], tuple(fields.nb)[::-1]
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    nbytes = reach + np.dtype(kind).itemsize if all(shape) else 0
    content = memoryview((ctypes.c_char * nbytes).from_address(fields.data or 0))
    return np.ndarray(shape, kind, content, strides=strides)


def ggml() -> ctypes.CDLL:
    return library("ggml-base")


@functools.cache
def library(stem: str) -> ctypes.CDLL:
    """One of llama.cpp's libraries, by its name without prefix and suffix."""
    return ctypes.CDLL(str(library_file(stem)))


@functools.cache
def library_file(stem: str) -> Path:
    """File of a llama.cpp library in llama-cpp-python, or in the folder LLAMA_CPP_LIB_PATH.

    Wheels have copies under several names instead of links; this finds the one that llama.cpp
    loaded, because another copy would have a state of its own. It stays the answer if somebody
    loads another one later. Raises EdgespecError.
    """
    folder = _folder()
    names = (
        f"lib{stem}.so",
        f"lib{stem}.so.*",
        f"lib{stem}.dylib",
        f"{stem}.dll",
        f"lib{stem}.dll",
    )
    files = [path for name in names for path in sorted(folder.glob(name))]
    if not files:
        raise EdgespecError(f"llama-cpp-python has no library {stem} in {folder}: reinstall it")
    return next(filter(_is_loaded, files), files[0])


@functools.cache
def _folder() -> Path:
    """The folder of llama.cpp's libraries, after loading separate backend libraries from it.

    llama.cpp itself looks for them only beside the interpreter and in the current folder. Raises
    EdgespecError if none is for this processor.
    """
    folder = Path(getattr(lib, "_base_path", Path(lib.__file__).parent / "lib"))
    n_backends = getattr(lib._lib, "ggml_backend_reg_count", None)
    if n_backends is None:  # on Windows, only a library's own functions are found
        return folder
    with log.captured():  # the first call starts all backends; CUDA's logs if it finds no device
        if not n_backends():
            lib._lib.ggml_backend_load_all_from_path(os.fsencode(folder))
    by_name = lib._lib["ggml_backend_reg_by_name"]
    by_name.restype = ctypes.c_void_p
    if not by_name(b"CPU"):
        raise EdgespecError(
            f"llama.cpp has no library for this processor ({platform.machine()}) in {folder}: "
            "install a llama-cpp-python that was built for it"
        )
    return folder


def _is_loaded(file: Path) -> bool:
    if sys.platform == "win32":
        return False
    try:
        ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def library_path() -> str:
    """The path of libllama."""
    return str(library_file("llama").resolve())


@functools.cache
def op_name(op: int) -> str:
    """ggml's name of an operation."""
    function = ggml().ggml_op_name
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_int]
    name: bytes = function(op)
    return name.decode()


@functools.cache
def op_number(name: str) -> int:
    """ggml's number of an operation; numbers change between versions, names do not."""
    for op in range(256):
        if op_name(op) == name:
            return op
    raise EdgespecError(f"this build of ggml has no operation {name}")


def buffer_is_host(buffer: int | None) -> bool:
    """True if a tensor's buffer is in the process's memory."""
    function = ggml().ggml_backend_buffer_is_host
    function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return bool(buffer) and bool(function(buffer))


def is_in_host_memory(tensor: int) -> bool:
    """False for a tensor on a device."""
    return buffer_is_host(GgmlTensor.from_address(tensor).buffer)
