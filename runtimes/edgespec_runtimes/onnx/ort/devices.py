"""Finds devices besides the CPU that onnxruntime can use here, and their memory.

A provider listed by onnxruntime may not work on this machine, so the driver is queried and then a
product computed with onnxruntime. Knows no models.
"""

from __future__ import annotations

import ctypes
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

MIB = 1 << 20
CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
_FATAL = 4
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@dataclass(frozen=True, slots=True)
class Device:
    """A device, by its names in onnxruntime."""

    provider: str
    label: str
    """Name for messages."""
    total_bytes: int = 0
    """Bytes of its own memory; 0 for the CPU."""
    free_bytes: int = 0
    """Free bytes when it was found, after the driver's context was created."""
    reserved_bytes: int = 0
    """Bytes reserved for handles and workspaces of its libraries."""
    slack_bytes: int = 0
    """Bytes reserved per session for fragmentation of its arena."""
    host_bytes: int = 0
    """Bytes of the process that its libraries take when kernels are first used."""

    @property
    def is_cpu(self) -> bool:
        return not self.total_bytes

    def providers(self, max_bytes: int = 0) -> tuple[tuple[str, dict[str, str]], ...]:
        """Providers for a session that may allocate `max_bytes` on the device; 0: no limit."""
        options: dict[str, str] = {}
        if self.provider == CUDA_PROVIDER:
            # the other strategy doubles its allocation each time, which is not planned
            options = {"device_id": "0", "arena_extend_strategy": "kSameAsRequested"}
            # other settings search algorithms of convolutions, which need large workspaces
            options["cudnn_conv_algo_search"] = "HEURISTIC"
            # floats are not rounded to ten bits before they are multiplied
            options["use_tf32"] = "0"
            if max_bytes:
                options["gpu_mem_limit"] = str(max_bytes)
        chosen = ((self.provider, options),)
        return chosen if self.provider == CPU_PROVIDER else (*chosen, (CPU_PROVIDER, {}))


CPU = Device(CPU_PROVIDER, "the CPU")


def is_listed(provider: str) -> bool:
    """True if this build of onnxruntime has the provider."""
    return provider in ort.get_available_providers()


def find_cuda() -> Device | str:
    """The first CUDA device, or why there is none. `CUDA_VISIBLE_DEVICES` is respected."""
    if not is_listed(CUDA_PROVIDER):
        return "this onnxruntime was built without it; pip install onnxruntime-gpu"
    found = _first_cuda_device()
    if isinstance(found, str):
        return found
    if reason := _why_cuda_is_unusable():
        return reason
    found = _first_cuda_device()  # again, now that the libraries have allocated their memory
    if isinstance(found, str):
        return found
    name, total_bytes, free_bytes = found
    return Device(
        CUDA_PROVIDER,
        f"{name} (CUDA)",
        total_bytes,
        free_bytes,
        # estimates that an H200 confirmed with one pair; its process grew by up to 267 MiB
        reserved_bytes=256 * MIB,
        slack_bytes=32 * MIB,
        host_bytes=320 * MIB,
    )


def nvidia_driver() -> ctypes.CDLL | None:
    """The NVIDIA driver's library; None if there is none, and so probably no GPU."""
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        return None


def _first_cuda_device() -> tuple[str, int, int] | str:
    """Name, memory and free memory of the driver's first device, or why there is none.

    Only the driver is used, which exists wherever a GPU works, with any version of CUDA. Free
    memory needs a context; this one is the process's primary context, which onnxruntime uses, too.
    """
    if (driver := nvidia_driver()) is None:
        return f"there is no NVIDIA driver ({_DRIVER})"
    try:
        return _ask(driver)
    except AttributeError as error:
        return f"the NVIDIA driver is too old ({error})"


def _ask(driver: ctypes.CDLL) -> tuple[str, int, int] | str:
    n_devices, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    steps: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGetCount(ctypes.byref(n_devices)),
        lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
        lambda: driver.cuDeviceGetName(name, len(name), device),
        # never released, because onnxruntime uses it until the process ends
        lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        lambda: driver.cuCtxPushCurrent_v2(context),
        lambda: driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        lambda: driver.cuCtxPopCurrent_v2(ctypes.byref(context)),
    )
    for step in steps:
        if code := step():
            return f"the NVIDIA driver finds no usable device (error {code})"
    return name.value.decode(errors="replace"), total.value, free.value


@cache
def _why_cuda_is_unusable() -> str | None:
    """Why onnxruntime cannot compute with CUDA although there is a device; None if it can.

    CUDA's libraries may be in Python packages, where the loader does not look for them. If they are
    missing, a session falls back to the CPU and only logs it.
    """
    said = io.StringIO()
    with redirect_stdout(said):  # it prints what it does not find
        ort.preload_dlls()
    if _computes_with_cuda():
        return None
    missing = next((line for line in said.getvalue().splitlines() if "Failed" in line), "")
    return (
        f"onnxruntime {ort.__version__} cannot use it: CUDA {ort.cuda_version} and cuDNN 9 are "
        f"needed{f' ({missing})' if missing else ''}; pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def _computes_with_cuda() -> bool:
    """True if a session with the CUDA provider gets it and can multiply.

    The product also makes CUDA's libraries allocate their memory before it is measured.
    """
    ort.set_default_logger_severity(_FATAL)
    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in "abc")
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    model = helper.make_model(
        helper.make_graph([node], "product", [a, b], [c]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=onnx.IR_VERSION_2021_7_30,
    )
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    two = np.full((1, 1), 2, np.float32)
    try:
        session = ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=[CUDA_PROVIDER, CPU_PROVIDER],
            enable_fallback=0,
        )
        (product,) = session.run(None, {"a": two, "b": two})
    except Exception:  # noqa: BLE001 - any error means that CUDA cannot be used
        return False
    return CUDA_PROVIDER in session.get_providers() and float(product[0, 0]) == 4
