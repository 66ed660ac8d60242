"""Saves and restores keys and values of a committed prefix in pieces, in llama.cpp's format.

The cells of a few tokens at a time are copied to a sequence of their own, so that no buffer is as
large as the cache. Recurrent state is indivisible and one piece. Knows no file.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgespec.errors import StateError
from edgespec.ports.state import Read, Write
from edgespec_runtimes.gguf.context.cells import PIECE_BYTES, LlamaMemory
from edgespec_runtimes.gguf.context.sequences import HOME, Texts

_STEP = struct.Struct("<I")
"""Header of a piece: its number of tokens."""
_RUN = struct.Struct("<II")
"""Half-open range of positions."""
_HEAD = struct.Struct("<Q")
"""Head of a checkpoint: the bytes of its recurrent state."""
_CHUNK_BYTES = 512
MAX_HOLLOW_BYTES = 64 << 20
"""Most bytes of a block whose zeros were left out."""
Runs = Sequence[tuple[int, int]]
MAX_BLOCK_TOKENS = 64
"""Most tokens of a block: a shorter rest of a prefix is computed again."""


def state_bytes(memory: LlamaMemory, has_parts: bool) -> int:
    """Bytes of the buffer that `write` needs."""
    return PIECE_BYTES if has_parts else memory.whole_bytes(HOME)


def write(
    memory: LlamaMemory, n_tokens: int, has_parts: bool, hand_over: Write, held: Runs = ()
) -> None:
    """Write the first `n_tokens` of the committed prefix; recurrent state is always whole.

    `held` has the positions that all layers still hold, if some free cells.
    """
    if not has_parts:
        buffer = _buffer(memory.whole_bytes(HOME))
        hand_over(memoryview(buffer).cast("B")[: memory.save_whole(buffer, HOME)])
        return
    step = memory.max_at_once(HOME, n_tokens)
    hand_over(memoryview(_STEP.pack(step) + b"".join(_RUN.pack(*run) for run in held)))
    buffer = _buffer(memory.piece_bytes(HOME, 0, step))
    for begin in range(0, n_tokens, step):
        end = min(begin + step, n_tokens)
        written = memory.save_into(buffer, HOME, begin, end)
        hand_over(memoryview(buffer).cast("B")[:written])


def read(
    memory: LlamaMemory,
    n_tokens: int,
    has_parts: bool,
    pieces: Read,
    texts: Texts,
) -> None:
    """Read `n_tokens` as the first text, which is empty. Raises StateError."""
    if not has_parts:
        memory.restore_whole(_next(pieces), HOME, n_tokens)
        texts.take_saved(n_tokens, ())
        return
    head = bytes(_next(pieces))
    if len(head) % _RUN.size != _STEP.size:
        raise StateError("the saved keys and values do not begin with their number of tokens")
    (step,) = _STEP.unpack_from(head)
    held = [*_RUN.iter_unpack(head[_STEP.size :])]
    if not 0 < step <= n_tokens:
        raise StateError(f"the saved keys and values claim {step} tokens in a piece of {n_tokens}")
    for begin in range(0, n_tokens, step):
        end = min(begin + step, n_tokens)
        piece = memoryview(_next(pieces)).cast("B")
        texts.layout.make_room_to_restore(end - begin, texts.all[HOME])
        read_block(memory, HOME, begin, end, piece)
        texts.take_saved(end - begin, held)


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


def without_zeros(content: memoryview) -> memoryview:
    """The content of a block without its chunks of zeros, as freed cells read."""
    chunks = np.zeros((-(-len(content) // _CHUNK_BYTES), _CHUNK_BYTES), np.uint8)
    chunks.reshape(-1)[: len(content)] = content
    is_used = chunks.any(axis=1)
    head = _HEAD.pack(len(content)) + np.packbits(is_used).tobytes()
    return memoryview(head + chunks[is_used].tobytes())


def with_zeros(packed: memoryview) -> memoryview:
    """The content of a block of `without_zeros`. Raises StateError for anything else."""
    n_bytes = _HEAD.unpack_from(packed)[0] if len(packed) >= _HEAD.size else 0
    n_chunks = -(-n_bytes // _CHUNK_BYTES)
    end = _HEAD.size + -(-n_chunks // 8)
    if not 0 < n_bytes <= MAX_HOLLOW_BYTES or end > len(packed):
        raise StateError("a block without window layers is damaged")
    marks = np.frombuffer(packed[_HEAD.size : end], np.uint8)
    is_used = np.unpackbits(marks, count=n_chunks).astype(bool)
    content = np.frombuffer(packed[end:], np.uint8)
    if content.size != _CHUNK_BYTES * int(is_used.sum()):
        raise StateError("a block without window layers is damaged")
    chunks = np.zeros((n_chunks, _CHUNK_BYTES), np.uint8)
    chunks[is_used] = content.reshape(-1, _CHUNK_BYTES)
    return chunks.reshape(-1)[:n_bytes].data.cast("B")


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


def _next(pieces: Read) -> Any:
    buffer = _buffer(pieces.size())
    pieces(memoryview(buffer).cast("B"))
    return buffer


def _buffer(n_bytes: int) -> Any:
    return (ctypes.c_uint8 * n_bytes)()
