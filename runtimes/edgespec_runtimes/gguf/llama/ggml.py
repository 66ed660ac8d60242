"""Wrappers of ggml's functions for devices, tensors, buffers and matrix products.

Addresses are integers. Knows no model.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.file.layout import KINDS, TENSOR_TYPES
from edgespec_runtimes.gguf.llama import abi

CPU, GPU, INTEGRATED_GPU = 0, 1, 2
"""`GGML_BACKEND_DEVICE_TYPE_CPU`, `_GPU` and `_IGPU`."""
F32, F16, Q8_0 = (KINDS[name].code for name in ("F32", "F16", "Q8_0"))
_WEIGHTS = 1
"""`GGML_BACKEND_BUFFER_USAGE_WEIGHTS`."""


def verify_mirror() -> None:
    """Check the mirror of ggml's tensor struct against the library.

    Raises EdgespecError if this build has another layout.
    """
    with ExitStack() as owned:
        context = new_context(owned, has_data=True)
        a, b = new_tensor(context, F32, 7, 3), new_tensor(context, F32, 7, 5)
        pointer("ggml_set_name", a, b"edgespec mirror")
        product = pointer("ggml_mul_mat", context, a, b)
        left, out = abi.GgmlTensor.from_address(a), abi.GgmlTensor.from_address(product)
        agrees = (
            left.name == b"edgespec mirror"
            and left.data == pointer("ggml_get_data", a)
            and list(left.ne) == [7, 3, 1, 1]
            and list(out.ne) == [3, 5, 1, 1]
            and list(out.src[:3]) == [a, b, None]
            and abi.op_name(out.op) == "MUL_MAT"
        )
    if not agrees:
        raise EdgespecError(
            "this build of llama-cpp-python lays out tensors in a way that edgespec does not know: "
            "install the version that pyproject.toml names"
        )


def new_context(owned: ExitStack, has_data: bool = False) -> int:
    """Create a context for some dozens of tensors, optionally with memory for their data.

    `owned` frees it.
    """
    context = pointer("ggml_init", abi.InitParams(1 << 16, None, not has_data))
    owned.callback(pointer, "ggml_free", context)
    return context


def new_tensor(context: int, kind: int, n_in: int, n_rows: int) -> int:
    """Create a tensor of shape [n_rows, n_in]."""
    sizes = ctypes.c_int64(n_in), ctypes.c_int64(n_rows)
    return pointer("ggml_new_tensor_2d", context, ctypes.c_int(kind), *sizes)


def new_buffer(owned: ExitStack, buffer_type: int, nbytes: int) -> int:
    """Create a buffer for weights, which `owned` frees. Raises EdgespecError without memory."""
    buffer = pointer("ggml_backend_buft_alloc_buffer", buffer_type, ctypes.c_size_t(nbytes))
    if not buffer:
        raise EdgespecError(f"{buffer_type_name(buffer_type)} has no room for {nbytes:,} bytes")
    owned.callback(pointer, "ggml_backend_buffer_free", buffer)
    call(None, "ggml_backend_buffer_set_usage", buffer, ctypes.c_int(_WEIGHTS))
    return buffer


def place(tensor: int, buffer: int, address: int) -> None:
    """Point a tensor to data at an address in a buffer, in the buffer's layout."""
    fields = abi.GgmlTensor.from_address(tensor)
    fields.buffer, fields.data = buffer, address
    call(ctypes.c_int, "ggml_backend_buffer_init_tensor", buffer, tensor)


def set_tensor(tensor: int, content: Any, nbytes: int) -> None:
    """Copy bytes of a file to a tensor, whose buffer converts them to its layout."""
    sizes = ctypes.c_size_t(0), ctypes.c_size_t(nbytes)
    call(None, "ggml_backend_tensor_set", tensor, content, *sizes)


@functools.cache
def packing_buffer_type(kind: int, n_in: int, n_out: int) -> int | None:
    """llama.cpp's preferred buffer type for weights [n_out, n_in]; None if they stay unpacked."""
    shape = _device(), kind, n_in, n_out, 512
    return next((b for b in _packing_buffer_types() if multiplies(*shape, b)), None)


def buffer_type_name(buffer_type: int) -> str:
    name: bytes = call(ctypes.c_char_p, "ggml_backend_buft_name", buffer_type)
    return name.decode()


def plain_buffer_type() -> int:
    """The CPU's buffer type for unpacked weights."""
    return buffer_type_of(_device())


def buffer_type_of(device: int) -> int:
    """Buffer type of a device's memory."""
    return pointer("ggml_backend_dev_buffer_type", device)


def devices_of(kind: int) -> list[int]:
    """All devices of a kind."""
    n_devices = int(call(ctypes.c_size_t, "ggml_backend_dev_count"))
    found = [pointer("ggml_backend_dev_get", ctypes.c_size_t(n)) for n in range(n_devices)]
    return [device for device in found if kind_of(device) == kind]


def kind_of(device: int) -> int:
    return int(call(ctypes.c_int, "ggml_backend_dev_type", device))


def gpus() -> list[int]:
    """The GPUs that can get layers: as in llama.cpp, those with own memory, otherwise others."""
    return devices_of(GPU) or devices_of(INTEGRATED_GPU)


def memory_of(device: int) -> tuple[int, int]:
    """Free and total bytes of a device's memory, as reported by its library."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call(None, "ggml_backend_dev_memory", device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def device_name(device: int) -> str:
    """Description of a device."""
    name: bytes = call(ctypes.c_char_p, "ggml_backend_dev_description", device)
    return name.decode(errors="replace")


def quantised(kind: int, values: np.ndarray) -> bytes:
    """Rows of weights, float32 [n_rows, n_in], quantised as in a file; all columns matter alike,
    which some types want to be told."""
    n_rows, n_in = values.shape
    out = ctypes.create_string_buffer(TENSOR_TYPES[kind].nbytes(values.size))
    sizes = [ctypes.c_int64(n) for n in (0, n_rows, n_in)]
    importance = np.ones(n_in, np.float32)
    call(
        ctypes.c_size_t,
        "ggml_quantize_chunk",
        ctypes.c_int(kind),
        values.ctypes.data,
        out,
        *sizes,
        importance.ctypes.data,
    )
    return out.raw


class _TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


def to_float(kind: int) -> Callable[[int, int, int], object]:
    """ggml's function that converts weights to float32: their address, the result's, elements."""
    traits = _TypeTraits.from_address(pointer("ggml_get_type_traits", ctypes.c_int(kind)))
    if not traits.to_float:  # float32
        return lambda source, out, n: ctypes.memmove(out, source, 4 * n)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return signature(traits.to_float)


def new_backend(owned: ExitStack, device: int) -> int:
    """Create a backend on a device, which `owned` frees. Raises EdgespecError."""
    backend = pointer("ggml_backend_dev_init", device, None)
    if not backend:
        raise EdgespecError(f"{device_name(device)} cannot be used")
    owned.callback(pointer, "ggml_backend_free", backend)
    return backend


def new_cpu_backend(owned: ExitStack, n_threads: int) -> int:
    """Create a CPU backend, which `owned` frees."""
    backend = new_backend(owned, _device())
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
    signature(cpu_function(b"ggml_backend_set_n_threads"))(backend, n_threads)
    return backend


def new_graph(context: int) -> int:
    """Create a graph of a few nodes, which is freed with its context."""
    return pointer("ggml_new_graph_custom", context, ctypes.c_size_t(8), ctypes.c_bool(False))


def compute(backend: int, graph: int) -> None:
    """Compute all nodes of a graph. Raises EdgespecError."""
    if status := call(ctypes.c_int, "ggml_backend_graph_compute", backend, graph):
        raise EdgespecError(f"ggml failed to multiply (status {status})")


def multiplies(
    device: int, kind: int, n_in: int, n_out: int, n_rows: int = 1, buffer_type: int | None = None
) -> bool:
    """True if a device supports products with weights [n_out, n_in], optionally in a buffer of
    `buffer_type`."""
    with ExitStack() as owned:
        context = new_context(owned)
        weights = new_tensor(context, kind, n_in, n_out)
        if buffer_type is not None:
            abi.GgmlTensor.from_address(weights).buffer = new_buffer(owned, buffer_type, 0)
        product = pointer("ggml_mul_mat", context, weights, new_tensor(context, F32, n_in, n_rows))
        return bool(call(ctypes.c_bool, "ggml_backend_dev_supports_op", device, product))


def product(
    buffer_type: int,
    kind: int,
    weights: bytes,
    rows: np.ndarray,
    device: int | None = None,
) -> bytes:
    """The product of float32 rows [n_rows, n_in] with weights [n_out, n_in] in such a buffer.

    It is float32 [n_rows, n_out], computed on `device` or the CPU.
    """
    (n_rows, n_in), rows = rows.shape, np.ascontiguousarray(rows)
    n_out = len(weights) // TENSOR_TYPES[kind].nbytes(n_in)
    out = (ctypes.c_float * (n_rows * n_out))()
    device = _device() if device is None else device
    with ExitStack() as owned:
        backend = new_backend(owned, device)
        left_context, context = new_context(owned), new_context(owned)
        left = new_tensor(left_context, kind, n_in, n_out)
        right = new_tensor(context, F32, n_in, n_rows)
        node = pointer("ggml_mul_mat", context, left, right)
        graph = new_graph(context)
        for tensors, kept_by in ((left_context, buffer_type), (context, buffer_type_of(device))):
            buffer = pointer("ggml_backend_alloc_ctx_tensors_from_buft", tensors, kept_by)
            owned.callback(pointer, "ggml_backend_buffer_free", buffer)
        set_tensor(left, weights, len(weights))
        set_tensor(right, rows.ctypes.data, rows.nbytes)
        call(None, "ggml_build_forward_expand", graph, node)
        compute(backend, graph)
        sizes = ctypes.c_size_t(0), ctypes.c_size_t(ctypes.sizeof(out))
        call(None, "ggml_backend_tensor_get", node, out, *sizes)
    return bytes(out)


@functools.cache
def _device() -> int:
    return pointer("ggml_backend_dev_by_type", ctypes.c_int(CPU))


def cpu_function(name: bytes) -> int:
    """Address of one of the CPU backend's own functions; 0 if it has none of that name."""
    registry = pointer("ggml_backend_dev_backend_reg", _device())
    return pointer("ggml_backend_reg_get_proc_address", registry, name)


@functools.cache
def _packing_buffer_types() -> tuple[int, ...]:
    """llama.cpp's extra buffer types for the CPU, in order of preference."""
    if not (address := cpu_function(b"ggml_backend_dev_get_extra_bufts")):
        return ()
    extra_types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    types, found = extra_types(_device()), list[int]()
    while types and types[len(found)]:
        found.append(types[len(found)])
    return tuple(found)


def pointer(name: str, *args: Any) -> int:
    """Call a ggml function that returns an address; 0 for none."""
    return call(ctypes.c_void_p, name, *args) or 0


def call(restype: Any, name: str, *args: Any) -> Any:
    """Call a ggml function; integers are passed as addresses."""
    library = next(library for library in _libraries() if hasattr(library, name))
    function = getattr(library, name)
    function.restype = restype
    return function(*(ctypes.c_void_p(arg) if isinstance(arg, int) else arg for arg in args))


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Separate handles of the libraries, because return types are set on them."""
    return tuple(ctypes.CDLL(str(abi.library_file(stem))) for stem in ("ggml-base", "ggml"))
