"""A program of its own: multiplies a few rows with llama.cpp's CPU code, plainly and packed.

It writes to stdout how far it came and imports the standard library only: where llama.cpp's code
ends a process it ends this one.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
from contextlib import suppress

PLAIN, PACKED = b"plain\n", b"packed\n"
"""Output once the products of that kind are right."""
WRONG = 3
"""Exit code if a product is wrong; 1 is Python's, for anything unexpected."""

K, N, ROWS = 256, 64, 9
"""Weights [N, K] times ROWS rows of activations: enough for every kernel that packs weights."""
TYPES = (2, 8, 12, 14)
"""Q4_0, Q8_0, Q4_K and Q6_K: the quantisations that most models have."""
TOLERANCE = 0.02
"""Share of the largest value by which products may differ: kernels differ in how they quantise
activations."""

_F32 = 0


def main(base_path: str, cpu_path: str) -> int:
    """The exit code: 0 if every product is right."""
    _leave_no_core_dump()
    cpu = _Cpu(base_path, cpu_path)
    plain = {kind: cpu.multiply(kind, cpu.plain) for kind in TYPES}
    if not all(value and any(value) and all(map(math.isfinite, value)) for value in plain.values()):
        return WRONG
    os.write(1, PLAIN)
    for buffer_type in cpu.packing:
        for kind, expected in plain.items():
            found = cpu.multiply(kind, buffer_type)
            if found and expected and not _close(found, expected):
                return WRONG
    os.write(1, PACKED)
    return 0


class _InitParams(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


class _Cpu:
    """ggml's CPU backend, its ordinary buffers and those that pack weights."""

    def __init__(self, base_path: str, cpu_path: str) -> None:
        self._base = ctypes.CDLL(base_path)
        cpu = ctypes.CDLL(cpu_path)
        cpu.ggml_backend_cpu_reg.restype = ctypes.c_void_p
        registry = cpu.ggml_backend_cpu_reg()
        self._device = self._call("ggml_backend_reg_dev_get", registry, ctypes.c_size_t(0))
        self._backend = self._call("ggml_backend_dev_init", self._device, None)
        self.plain = self._call("ggml_backend_dev_buffer_type", self._device)
        self.packing = self._packing(registry)

    def multiply(self, kind: int, buffer_type: int) -> list[float] | None:
        """Products [ROWS * N] with weights of this type; None if these buffers do not take it."""
        weights_context, context = self._context(), self._context()
        weights = self._new(weights_context, kind, N)
        allocated = self._call(
            "ggml_backend_alloc_ctx_tensors_from_buft", weights_context, buffer_type
        )
        rows = self._new(context, _F32, ROWS)
        product = self._call("ggml_mul_mat", context, weights, rows)
        if not allocated or not self._call(
            "ggml_backend_dev_supports_op", self._device, product, restype=ctypes.c_bool
        ):
            return None
        self._call("ggml_backend_alloc_ctx_tensors_from_buft", context, self.plain)
        self._set(weights, self._quantised(kind))
        self._set(rows, struct.pack(f"{ROWS * K}f", *_values(ROWS * K, 0.37)))
        graph = self._call("ggml_new_graph", context)
        self._call("ggml_build_forward_expand", graph, product, restype=None)
        if self._call("ggml_backend_graph_compute", self._backend, graph, restype=ctypes.c_int):
            raise RuntimeError("ggml could not compute")
        out = (ctypes.c_float * (ROWS * N))()
        size = ctypes.c_size_t(ctypes.sizeof(out))
        self._call("ggml_backend_tensor_get", product, out, ctypes.c_size_t(0), size, restype=None)
        return list(out)

    def _packing(self, registry: int) -> list[int]:
        """llama.cpp's extra buffer types; often none."""
        address = self._call(
            "ggml_backend_reg_get_proc_address", registry, b"ggml_backend_dev_get_extra_bufts"
        )
        if not address:
            return []
        extra_types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        types = extra_types(self._device)
        found: list[int] = []
        while types and (buffer_type := types[len(found)]):
            found.append(buffer_type)
        return found

    def _context(self) -> int:
        return self._call("ggml_init", _InitParams(1 << 20, None, True))

    def _new(self, context: int, kind: int, n_rows: int) -> int:
        """A tensor of `n_rows` rows of K values, not yet anywhere in memory."""
        sizes = ctypes.c_int64(K), ctypes.c_int64(n_rows)
        return self._call("ggml_new_tensor_2d", context, ctypes.c_int(kind), *sizes)

    def _quantised(self, kind: int) -> bytes:
        row_bytes = self._call(
            "ggml_row_size", ctypes.c_int(kind), ctypes.c_int64(K), restype=ctypes.c_size_t
        )
        values = (ctypes.c_float * (N * K))(*_values(N * K, 0.73))
        out = ctypes.create_string_buffer(N * row_bytes)
        size = [ctypes.c_int64(n) for n in (0, N, K)]
        self._call("ggml_quantize_chunk", ctypes.c_int(kind), values, out, *size, None)
        return out.raw

    def _set(self, tensor: int, content: bytes) -> None:
        size = ctypes.c_size_t(len(content))
        self._call(
            "ggml_backend_tensor_set", tensor, content, ctypes.c_size_t(0), size, restype=None
        )

    def _call(self, name: str, *args: object, restype: object = ctypes.c_void_p) -> int:
        """Call a function of ggml's base library; whole numbers are addresses."""
        function = getattr(self._base, name)
        function.restype = restype
        wide = [ctypes.c_void_p(value) if isinstance(value, int) else value for value in args]
        result: int = function(*wide)
        return result


def _values(n: int, step: float) -> list[float]:
    """Numbers between -1 and 1 that repeat nowhere."""
    return [math.sin(step * i + 0.01 * (i // K)) for i in range(n)]


def _close(found: list[float], expected: list[float]) -> bool:
    most = TOLERANCE * max(map(abs, expected))
    return all(abs(one - other) <= most for one, other in zip(found, expected, strict=True))


def _leave_no_core_dump() -> None:
    """Suppress the core dump and the error dialogue: a crash is an expected result here."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
    if sys.platform == "win32":
        no_dialogue = 0x0001 | 0x0002  # SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX
        ctypes.windll.kernel32.SetErrorMode(no_dialogue)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
