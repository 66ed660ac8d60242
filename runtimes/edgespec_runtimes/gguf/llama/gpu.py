"""The GPU that llama.cpp would put layers on, and copies to it as it makes them of weights.

Knows no models.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from edgespec_runtimes.gguf.llama import ggml, loading

KINDS = (ggml.GPU, ggml.INTEGRATED_GPU)
"""Those with memory of their own come first, as they do in llama.cpp."""


def find() -> int | None:
    """The device's address; None where there is none, and where the build supports none."""
    if not loading.supports_gpu():
        return None
    found = (ggml.device_of(kind) for kind in KINDS)
    return next((device for device in found if device), None)


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
