"""llama.cpp's KV cache as sequences of cells. Knows its functions, but no trees or branches."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

from edgespec.errors import EdgespecError, StateError
from edgespec_runtimes.gguf.context.cache_memory import CacheMemory
from edgespec_runtimes.gguf.llama.bindings import lib

PIECE_BYTES = 1 << 20
"""Approximate size of a piece; a token's keys and values are never divided."""
_RECURRENT = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class LlamaMemory:
    """The cells of one context. `spare` is a sequence in which no token is ever decoded, and which
    is empty when cells are saved or restored."""

    def __init__(
        self,
        context: Any,
        spare: int,
        caches: CacheMemory | None = None,
        is_hybrid: bool = False,
    ) -> None:
        """`is_hybrid`: pieces are of attention alone, as every copy of a sequence has all of its
        recurrent state."""
        self._context = context
        self._is_hybrid = is_hybrid
        self._handle = lib.llama_get_memory(context)
        self._spare = spare
        self._caches = caches

    def remove(self, sequence: int, begin: int, end: int) -> None:
        if not lib.llama_memory_seq_rm(self._handle, sequence, begin, end):
            raise EdgespecError("this model's state cannot drop single tokens")

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        lib.llama_memory_seq_cp(self._handle, source, target, begin, end)

    def save(self, sequence: int, begin: int, end: int) -> Any:
        """A buffer with the keys and values of positions `begin` to `end` of `sequence`."""
        saved = (ctypes.c_uint8 * self._piece_bytes(sequence, begin, end))()
        self._copy_to_spare(sequence, begin, end)
        written = lib.llama_state_seq_get_data(self._context, saved, len(saved), self._spare)
        self.remove(self._spare, -1, -1)
        if not written:
            raise EdgespecError("llama.cpp could not save a part of the KV cache")
        return saved

    def _piece_bytes(self, sequence: int, begin: int, end: int) -> int:
        """Number of bytes that `save` writes."""
        self._copy_to_spare(sequence, begin, end)
        size = lib.llama_state_seq_get_size(self._context, self._spare)
        self.remove(self._spare, -1, -1)
        return int(size)

    def adopt(self, content: memoryview, sequence: int, begin: int, end: int) -> None:
        """`restore` untrusted bytes.

        Raises StateError unless they hold exactly these positions, and leaves the sequence as it
        was.
        """
        n_bytes, buffer = content.nbytes, (ctypes.c_uint8 * content.nbytes).from_buffer(content)
        try:
            n_restored = lib.llama_state_seq_set_data(self._context, buffer, n_bytes, self._spare)
            first, last = self._positions(self._spare)
            size = lib.llama_state_seq_get_size(self._context, self._spare)
            if self._is_hybrid:  # which has a last position only with a recurrent state
                last = end - 1
            if n_restored != n_bytes or size != n_bytes or (first, last) != (begin, end - 1):
                raise StateError("llama.cpp does not take the saved keys and values")
            self.copy(self._spare, sequence, begin, end)
        finally:
            self.remove(self._spare, -1, -1)

    def _copy_to_spare(self, sequence: int, begin: int, end: int) -> None:
        nothing = self.save_recurrent(self._spare) if self._is_hybrid else None
        self.copy(sequence, self._spare, begin, end)
        if nothing is not None:
            self.restore_recurrent(nothing, self._spare)

    def recurrent_bytes(self, sequence: int) -> int:
        """Bytes of a sequence's recurrent state, and of its attention windows if it has both."""
        return int(lib.llama_state_seq_get_size_ext(self._context, sequence, _RECURRENT))

    def save_recurrent(self, sequence: int) -> Any:
        """A buffer with the recurrent state of a sequence."""
        size = self.recurrent_bytes(sequence)
        saved = (ctypes.c_uint8 * size)()
        written = lib.llama_state_seq_get_data_ext(self._context, saved, size, sequence, _RECURRENT)
        if written != size:
            raise EdgespecError(f"llama.cpp saved {written} of {size} bytes of a recurrent state")
        return saved

    def restore_recurrent(self, saved: Any, sequence: int) -> None:
        """Restore a state of `save_recurrent`; keys and values of attention are unchanged."""
        if not self._set_recurrent(saved, sequence):
            raise EdgespecError("llama.cpp could not restore a recurrent state")

    def adopt_recurrent(self, saved: Any, sequence: int, n_tokens: int) -> None:
        """`restore_recurrent` of untrusted bytes after `n_tokens`. Raises StateError."""
        n_restored = self._set_recurrent(saved, sequence)
        if n_restored != len(saved) or self._positions(sequence)[1] != n_tokens - 1:
            raise StateError("llama.cpp does not take the saved recurrent state")

    def _set_recurrent(self, saved: Any, sequence: int) -> int:
        flags = len(saved), sequence, _RECURRENT
        return int(lib.llama_state_seq_set_data_ext(self._context, saved, *flags))

    def _positions(self, sequence: int) -> tuple[int, int]:
        first = lib.llama_memory_seq_pos_min(self._handle, sequence)
        return int(first), int(lib.llama_memory_seq_pos_max(self._handle, sequence))

    def restore(self, saved: Any, sequence: int, begin: int, end: int) -> None:
        """Write a buffer of `save` to the first free cells, as part of `sequence`."""
        if not lib.llama_state_seq_set_data(self._context, saved, len(saved), self._spare):
            raise EdgespecError("llama.cpp could not restore a part of the KV cache")
        self.copy(self._spare, sequence, begin, end)
        self.remove(self._spare, -1, -1)

    def max_at_once(self, sequence: int, n_tokens: int) -> int:
        """Tokens per piece: as many as fit into PIECE_BYTES and into every layer's window.

        llama.cpp omits cells outside the window of a piece's last token, which a rollback would
        need.
        """
        first = self._piece_bytes(sequence, 0, 1)
        if n_tokens == 1:
            return 1
        each = self._piece_bytes(sequence, 0, 2) - first
        step = max(1, min(n_tokens, PIECE_BYTES // max(1, each)))
        while step > 1 and self._piece_bytes(sequence, 0, step) < first + (step - 1) * each:
            step = -(-step // 2)
        return step

    def clear(self) -> None:
        with self._caches.clearing() if self._caches else nullcontext():
            lib.llama_memory_clear(self._handle, True)
