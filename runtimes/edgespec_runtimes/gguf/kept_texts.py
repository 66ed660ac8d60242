"""The part of a GGUF model that saves and restores its texts: in blocks, by checkpoints.

Knows which layers hold what of a text; `context.cells` has llama.cpp's bytes. The cells of a few
tokens at a time are copied to a sequence of their own, so that no buffer is as large as the cache.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from edgespec.errors import StateError
from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.cells import PIECE_BYTES, LlamaMemory
from edgespec_runtimes.gguf.context.recurrent import RecurrentText
from edgespec_runtimes.gguf.context.sequences import HOME
from edgespec_runtimes.gguf.context.windows import WindowCells
from edgespec_runtimes.kit.running import RunningModel

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


class KeptTexts(RunningModel):
    """Base of GGUF models, which store texts."""

    _memory: LlamaMemory
    _texts: Texts
    _recurrent: RecurrentText
    _windows: WindowCells | None

    def write_block(self, begin: int, slot: int, n_tokens: int = 0) -> memoryview:
        with self._users:
            texts, home = self._texts, self._texts.all[slot].home
            if texts.tile == 1:  # otherwise cells are saved through a sequence of their own
                texts.put_in_order()
            end = begin + (n_tokens or self.info.block_tokens)
            return memoryview(self._memory.save(home, begin, end)).cast("B")

    def read_block(self, content: memoryview, slot: int, n_tokens: int = 0) -> None:
        with self._users:
            n_tokens = n_tokens or self.info.block_tokens
            text = self._texts.all[slot]
            self._texts.make_room_to_restore(n_tokens, text)
            begin = text.n_committed
            self._memory.adopt(content, text.home, begin, begin + n_tokens)
            text.extend(n_tokens)

    def checkpoints(self, slot: int) -> Sequence[int]:
        return sorted(self._recurrent.checkpoints)

    def write_checkpoint(self, n_tokens: int, slot: int) -> Sequence[memoryview]:
        with self._users:
            kept, begin = self._recurrent.checkpoints[n_tokens], self._end_of_blocks(n_tokens)
            rest = self._memory.save(HOME, begin, n_tokens) if begin < n_tokens else b""
            content = memoryview(kept).cast("B")
            pieces = [content[i : i + PIECE_BYTES] for i in range(0, len(content), PIECE_BYTES)]
            return [*pieces, memoryview(_HEAD.pack(len(kept)) + bytes(rest))]

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        with self._users:
            head = memoryview(bytearray(next(pieces)))
            n_bytes = _HEAD.unpack_from(head)[0] if len(head) >= _HEAD.size else 0
            if not 0 < n_bytes <= self._recurrent.state_bytes:
                raise StateError(f"a recurrent state of {n_bytes:,} bytes does not fit the model")
            begin = self._end_of_blocks(n_tokens)
            if begin < n_tokens:
                self._memory.adopt(head[_HEAD.size :], HOME, begin, n_tokens)
            self._texts.all[HOME].extend(n_tokens - self._texts.all[HOME].n_committed)
            self._recurrent.adopt(n_tokens, _joined(pieces, n_bytes))

    def expect_end(self, n_tokens: int, slot: int) -> None:
        if self.info.prompts_share_passes:  # otherwise a part would round unlike the whole
            self._recurrent.expected_end = n_tokens

    def _end_of_blocks(self, n_tokens: int) -> int:
        """Tokens whose keys and values are in whole blocks, or nowhere."""
        return n_tokens - n_tokens % (self.info.block_tokens or 1)


def _joined(pieces: Iterator[memoryview], n_bytes: int) -> Any:
    """The recurrent state in the further pieces of a checkpoint. Raises StateError."""
    buffer: Any = (ctypes.c_uint8 * n_bytes)()
    into, filled = memoryview(buffer).cast("B"), 0
    while filled < n_bytes:
        piece = next(pieces, None)
        if piece is None or not 0 < len(piece) <= n_bytes - filled:
            raise StateError("a piece of the recurrent state is missing")
        into[filled : filled + len(piece)] = piece
        filled += len(piece)
    return buffer
