"""The GPUs that llama.cpp would put layers on, and which memory they have.

Knows no models.
"""

from __future__ import annotations

import sys

from edgespec_runtimes.gguf.llama import ggml, loading

KINDS = (ggml.GPU, ggml.INTEGRATED_GPU)
"""Those with memory of their own come first, as they do in llama.cpp."""


def find() -> int | None:
    """The first device's address; None where there is none, and where the build supports none."""
    return next(iter(find_all()), None)


def find_all() -> list[int]:
    """All that share the layers: those of the first kind that there is."""
    if not loading.supports_gpu():
        return []
    return next((found for kind in KINDS if (found := ggml.devices_of(kind))), [])


def has_own_memory(device: int) -> bool:
    """Whether what lies on it is not in the process's memory. Apple's devices share that."""
    return sys.platform != "darwin" and ggml.kind_of(device) != ggml.INTEGRATED_GPU
