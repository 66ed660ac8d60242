"""The CPU's device in a GPU's place, for machines without one: llama.cpp puts layers on it.

Names, drivers and memory of its own are what is not tried that way.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

from edgespec_runtimes.gguf.llama import ggml, gpu, gpu_trial, loading

TRIAL = [sys.executable, __file__]
"""In the place of `gpu_trial`."""


def use_stand_in(patch: pytest.MonkeyPatch) -> int:
    """Have llama.cpp take the CPU's device for a GPU; its address."""
    loading.supports_gpu()  # starts the library
    device = ggml.device_of(ggml.CPU)
    assert device is not None
    devices = (ctypes.c_void_p * 2)(device, None)
    place = loading._place

    def placed(params: Any, n_gpu_layers: int) -> None:
        place(params, n_gpu_layers)
        if n_gpu_layers:
            params.devices = ctypes.addressof(devices)

    patch.setattr(loading, "_place", placed)
    patch.setattr(loading, "supports_gpu", lambda: True)
    patch.setattr(gpu, "KINDS", (ggml.CPU,))
    return device


if __name__ == "__main__":
    use_stand_in(pytest.MonkeyPatch())
    sys.exit(gpu_trial.main())
