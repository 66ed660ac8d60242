"""Saves and restores a committed prefix in blocks and checkpoints, in llama.cpp's format.

The cells of a few tokens at a time are copied to a sequence of their own, so that no buffer is as
large as the cache. Knows no file.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

from edgespec.errors import StateError
from edgespec_runtimes.gguf.context.cells import PIECE_BYTES, LlamaMemory

_HEAD = struct.Struct("<Q")
"""Head of a checkpoint: the bytes of its recurrent state."""
MAX_BLOCK_TOKENS = 64
"""Most tokens of a block: a shorter rest of a prefix is computed again."""


def block_tokens(token_bytes: int, n_window: int) -> int:
    """Tokens of a block, a power of two; their keys and values take about PIECE_BYTES.

    A block is no longer than a sliding window (0 if there is none), outside which llama.cpp omits
    cells.
    """
    most = min(MAX_BLOCK_TOKENS, PIECE_BYTES // max(1, token_bytes), n_window or MAX_BLOCK_TOKENS)
    return 1 << max(0, most.bit_length() - 1)


def write_block(memory: LlamaMemory, sequence: int, begin: int, end: int) -> memoryview:
    """The keys and values of the committed positions from `begin` to `end` of a sequence."""
    return memoryview(memory.save(sequence, begin, end)).cast("B")


def read_block(
    memory: LlamaMemory, sequence: int, begin: int, end: int, content: memoryview
) -> None:
    """Append a block to a sequence. Raises StateError, and leaves the sequence as it was."""
    buffer = (ctypes.c_uint8 * content.nbytes).from_buffer(content)
    try:
        memory.restore_from(buffer, sequence, begin, end)
    except BaseException:
        memory.drop_spare()
        raise


def slice_of(kept: Any, piece: int) -> memoryview | None:
    """A piece of a checkpoint of recurrent state; None after the last one."""
    return memoryview(kept).cast("B")[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES] or None


def head_of(kept: Any, rest: Any) -> memoryview:
    """The piece of a checkpoint that has its size, and keys and values behind the last block."""
    return memoryview(_HEAD.pack(len(kept)) + bytes(rest))


def read_head(piece: memoryview, most_bytes: int) -> tuple[int, memoryview]:
    """Bytes of a checkpoint's recurrent state, at most `most_bytes`, and what else `head_of` wrote.

    Raises StateError.
    """
    head = memoryview(bytearray(piece))
    n_bytes = _HEAD.unpack_from(head)[0] if len(head) >= _HEAD.size else 0
    if not 0 < n_bytes <= most_bytes:
        raise StateError(f"a recurrent state of {n_bytes:,} bytes does not fit the model")
    return n_bytes, head[_HEAD.size :]


def joined(pieces: Iterator[memoryview], n_bytes: int) -> Any:
    """The recurrent state in the further pieces of a checkpoint. Raises StateError."""
    buffer = _buffer(n_bytes)
    into, filled = memoryview(buffer).cast("B"), 0
    while filled < n_bytes:
        piece = next(pieces, None)
        if piece is None or not 0 < len(piece) <= n_bytes - filled:
            raise StateError("a piece of the recurrent state is missing")
        into[filled : filled + len(piece)] = piece
        filled += len(piece)
    return buffer


def _buffer(n_bytes: int) -> Any:
    return (ctypes.c_uint8 * n_bytes)()
