"""Saves and restores keys and values of a committed prefix in pieces, in llama.cpp's format.

The cells of a few tokens at a time are copied to a sequence of their own, so that no buffer is as
large as the cache. Recurrent state is indivisible and one piece. Knows no file.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from edgespec.errors import StateError
from edgespec.ports.state import Read, Write
from edgespec_runtimes.gguf.context.cells import PIECE_BYTES, LlamaMemory
from edgespec_runtimes.gguf.context.sequences import HOME

_STEP = struct.Struct("<I")
"""Header of a piece: its number of tokens."""
_RUN = struct.Struct("<II")
"""Half-open range of positions."""
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
    take: Callable[[int, Runs], None],
) -> None:
    """Read `n_tokens` into the empty cache as the prefix.

    `take` is called with the number of tokens read and the positions that all layers hold. Raises
    StateError.
    """
    if not has_parts:
        memory.restore_whole(_next(pieces), HOME, n_tokens)
        take(n_tokens, ())
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
        memory.restore_from(_next(pieces), HOME, begin, end)
        take(end - begin, held)


def block_tokens(token_bytes: int) -> int:
    """Tokens of a block, a power of two; their keys and values take about PIECE_BYTES."""
    most = min(MAX_BLOCK_TOKENS, PIECE_BYTES // max(1, token_bytes))
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


def _next(pieces: Read) -> Any:
    buffer = _buffer(pieces.size())
    pieces(memoryview(buffer).cast("B"))
    return buffer


def _buffer(n_bytes: int) -> Any:
    return (ctypes.c_uint8 * n_bytes)()
