"""What weights take in the buffers in which llama.cpp packs them for the CPU.

It asks ggml, with tensors that have a shape and no memory. Which tensors a model has, and whether
they are packed at all, is not known here.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack

from edgespec_runtimes.gguf.llama import ggml


@functools.cache
def packed_bytes(kind: int, n_in: int, n_out: int) -> int | None:
    """Of weights [n_out, n_in] of a ggml type that multiply; None if they stay as they are."""
    buffer_type = ggml.packing_buffer_type(kind, n_in, n_out)
    if buffer_type is None:
        return None
    with ExitStack() as owned:
        weights = ggml.new_tensor(ggml.new_context(owned), kind, n_in, n_out)
        return ggml.alloc_bytes(buffer_type, weights)
