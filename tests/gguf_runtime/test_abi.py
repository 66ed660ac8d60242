"""The libraries that are called are those that llama.cpp computes with."""

from __future__ import annotations

import ctypes

from edgespec_runtimes.gguf.llama import abi, ggml


def test_the_cpu_code_that_is_called_is_that_of_llama_cpps_devices() -> None:
    """Wheels hold a second copy of each library, which knew nothing of packed weights."""
    called = abi.library("ggml-cpu")
    called.ggml_backend_cpu_reg.restype = ctypes.c_void_p
    device = ggml.devices_of(ggml.CPU)[0]
    used = abi.library("ggml-base")
    used.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    registry = used.ggml_backend_dev_backend_reg(ctypes.c_void_p(device))
    assert called.ggml_backend_cpu_reg() == registry
