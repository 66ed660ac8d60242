"""The GPUs that llama.cpp would put layers on, and copies to one as it makes them of weights.

Knows no models.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

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


@contextmanager
def copying(device: int, nbytes: int) -> Iterator[Callable[[], object]]:
    """Each call copies `nbytes`, a multiple of 4, from the process's memory to the device's.

    Raises EdgespecError where the device has no room for them.
    """
    with ExitStack() as owned:
        tensor = ggml.new_tensor(ggml.new_context(owned), ggml.F32, nbytes // 4, 1)
        buffer = ggml.new_buffer(owned, ggml.buffer_type_of(device), nbytes)
        ggml.place(tensor, buffer, ggml.base_address(buffer))
        content = ctypes.create_string_buffer(nbytes)
        ctypes.memset(content, 1, nbytes)  # else all of it is one page of zeros
        yield partial(ggml.set_tensor, tensor, content, nbytes)
