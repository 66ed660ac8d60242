"""The part of a GGUF model that saves and restores its texts: in blocks, by checkpoints.

Knows which layers hold what of a text; `state` and `context.cells` have llama.cpp's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec_runtimes.gguf.context import state_pieces
from edgespec_runtimes.gguf.context.cells import LlamaMemory
from edgespec_runtimes.gguf.context.recurrent import RecurrentText
from edgespec_runtimes.gguf.context.sequences import HOME, Texts
from edgespec_runtimes.gguf.context.windows import WindowCells
from edgespec_runtimes.kit.running import RunningModel


class KeptTexts(RunningModel):
    """Base of GGUF models, which store texts."""

    _memory: LlamaMemory
    _texts: Texts
    _recurrent: RecurrentText
    _windows: WindowCells | None

    def write_block(self, begin: int, slot: int) -> memoryview:
        with self._users.use():
            home, layout = self._texts.all[slot].home, self._texts.layout
            if layout.tile == 1:  # otherwise cells are saved through a sequence of their own
                layout.put_in_order()
            return state_pieces.write_block(
                self._memory, home, begin, begin + self.info.block_tokens
            )

    def read_block(self, content: memoryview, slot: int) -> None:
        with self._users.use():
            text, n_tokens = self._texts.all[slot], self.info.block_tokens
            self._texts.layout.make_room_to_restore(n_tokens, text)
            begin = text.n_committed
            state_pieces.read_block(self._memory, text.home, begin, begin + n_tokens, content)
            text.extend(n_tokens)

    def checkpoints(self, slot: int) -> Sequence[int]:
        return self._recurrent.ends

    def write_checkpoint(self, n_tokens: int, piece: int, slot: int) -> memoryview | None:
        with self._users.use():
            kept = self._recurrent.checkpoint(n_tokens)
            if piece:
                return state_pieces.slice_of(kept, piece - 1)
            begin = self._end_of_blocks(n_tokens)
            rest = self._memory.save(HOME, begin, n_tokens) if begin < n_tokens else b""
            return state_pieces.head_of(kept, rest)

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        with self._users.use():
            n_bytes, rest = state_pieces.read_head(next(pieces), self._recurrent.most_bytes)
            begin = self._end_of_blocks(n_tokens)
            if begin < n_tokens:
                state_pieces.read_block(self._memory, HOME, begin, n_tokens, rest)
            self._texts.all[HOME].extend(n_tokens - self._texts.all[HOME].n_committed)
            self._recurrent.adopt(n_tokens, state_pieces.joined(pieces, n_bytes))

    def expect_end(self, n_tokens: int, slot: int) -> None:
        if self.info.prompts_share_passes:  # otherwise a part would round unlike the whole
            self._recurrent.expected_end = n_tokens

    def _end_of_blocks(self, n_tokens: int) -> int:
        """Tokens whose keys and values are in whole blocks, or nowhere."""
        return n_tokens - n_tokens % (self.info.block_tokens or 1)
