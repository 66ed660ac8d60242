"""llama.cpp's KV cache seen as sequences of cells. Knows the calls; no tree and no branch."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib

from edgespec.errors import EdgespecError


class LlamaMemory:
    """The cells of one context. `spare` is a sequence that no token is ever decoded in."""

    def __init__(self, context: Any, spare: int) -> None:
        self._context = context
        self._handle = lib.llama_get_memory(context)
        self._spare = spare

    def remove(self, sequence: int, begin: int, end: int) -> None:
        if not lib.llama_memory_seq_rm(self._handle, sequence, begin, end):
            raise EdgespecError("this model's state cannot drop single tokens")

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._handle, source, target, begin, end)

    def save(self, sequence: int, begin: int, end: int) -> Any:
        """The keys and values of positions `begin` to `end` of `sequence`: a buffer of bytes."""
        self.copy(sequence, self._spare, begin, end)
        size = lib.llama_state_seq_get_size(self._context, self._spare)
        saved = (ctypes.c_uint8 * size)()
        written = lib.llama_state_seq_get_data(self._context, saved, size, self._spare)
        self.remove(self._spare, -1, -1)
        if written != size:
            raise EdgespecError(f"llama.cpp saved {written} of {size} bytes of the KV cache")
        return saved

    def restore(self, saved: Any, sequence: int, begin: int, end: int) -> None:
        """Write what `save` returned into the first free cells, as part of `sequence`."""
        if not lib.llama_state_seq_set_data(self._context, saved, len(saved), self._spare):
            raise EdgespecError("llama.cpp could not restore a part of the KV cache")
        self.copy(self._spare, sequence, begin, end)
        self.remove(self._spare, -1, -1)

    def clear(self) -> None:
        lib.llama_memory_clear(self._handle, True)
