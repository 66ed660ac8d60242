"""The part of a GGUF model that saves and restores its texts: whole, in blocks, by checkpoints.

Knows which layers hold what of a text; `state` and `context.cells` have llama.cpp's bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from edgespec.ports.state import Read, Write
from edgespec_runtimes.gguf.context import state_pieces
from edgespec_runtimes.gguf.context.cells import LlamaMemory
from edgespec_runtimes.gguf.context.recurrent import RecurrentText
from edgespec_runtimes.gguf.context.sequences import HOME, Texts
from edgespec_runtimes.gguf.context.windows import WindowCells
from edgespec_runtimes.kit.running import RunningModel


class KeptTexts(RunningModel):
    """Base of GGUF models; implements `KeepsState`, `KeepsBlocks`, `FreesWindows` and
    `KeepsCheckpoints`."""

    _memory: LlamaMemory
    _texts: Texts
    _recurrent: RecurrentText
    _windows: WindowCells | None
    _token_bytes: int
    """Bytes of keys and values of one token, at least."""
    _narrowest: int
    """Tokens of a sliding window; 0 if there is none."""
    _has_attention: bool
    """True if some layers have keys and values."""
    _keeps_checkpoints: bool
    """True if recurrent state can be stored apart from keys and values."""

    @property
    def state_bytes(self) -> int:
        with self._users.use():
            return state_pieces.state_bytes(self._memory, self.info.tree_capable)

    def write_state(self, hand_over: Write) -> None:
        if self._recurrent.lag:
            self._read([])
        with self._users.use():
            self._texts.layout.put_in_order()
            text, windows = self._texts.all[0], self._windows
            held = windows.runs_of(text.cells) if windows else ()
            state_pieces.write(
                self._memory, text.n_committed, self.info.tree_capable, hand_over, held
            )

    def read_state(self, n_tokens: int, read: Read) -> None:
        with self._users.use():
            try:
                self._empty()
                state_pieces.read(self._memory, n_tokens, self.info.tree_capable, read, self._texts)
            except BaseException:
                self._forget_first()
                raise

    @property
    def block_tokens(self) -> int:
        if not self.info.tree_capable and not (self._keeps_checkpoints and self._has_attention):
            return 0
        return state_pieces.block_tokens(self._token_bytes, self._narrowest)

    def write_block(self, begin: int, slot: int) -> memoryview:
        with self._users.use():
            home, layout = self._texts.all[slot].home, self._texts.layout
            if layout.tile == 1:  # otherwise cells are saved through a sequence of their own
                layout.put_in_order()
            block = state_pieces.write_block(self._memory, home, begin, begin + self.block_tokens)
            return block if self.is_whole(begin, slot) else state_pieces.without_zeros(block)

    def read_block(self, content: memoryview, slot: int) -> None:
        self._append(content, slot, is_whole=True)

    def read_hollow(self, content: memoryview, slot: int) -> None:
        self._append(state_pieces.with_zeros(content), slot, is_whole=False)

    def _append(self, content: memoryview, slot: int, is_whole: bool) -> None:
        with self._users.use():
            text, n_tokens = self._texts.all[slot], self.block_tokens
            self._texts.layout.make_room_to_restore(n_tokens, text)
            begin = text.n_committed
            state_pieces.read_block(self._memory, text.home, begin, begin + n_tokens, content)
            self._texts.take_block(slot, n_tokens, is_whole)

    @property
    def n_window(self) -> int:
        return self._windows.n_window if self._windows else 0

    def is_whole(self, begin: int, slot: int) -> bool:
        cells = self._texts.all[slot].cells[begin : begin + self.block_tokens]
        return self._windows is None or bool(self._windows.are_held(cells).all())

    def keep_window(self, n_tokens: int, slot: int) -> None:
        self._texts.all[slot].ends.add(n_tokens)

    @property
    def needs_checkpoints(self) -> bool:
        return not self.info.tree_capable and self._keeps_checkpoints

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
            self._texts.take_block(HOME, n_tokens - self._texts.all[HOME].n_committed)
            self._recurrent.adopt(n_tokens, state_pieces.joined(pieces, n_bytes))

    def expect_end(self, n_tokens: int, slot: int) -> None:
        if self.info.prompts_share_passes:  # otherwise a part would round unlike the whole
            self._recurrent.expected_end = n_tokens

    def _end_of_blocks(self, n_tokens: int) -> int:
        """Tokens whose keys and values are in whole blocks, or nowhere."""
        return n_tokens - n_tokens % self.block_tokens if self.block_tokens else n_tokens

    @abstractmethod
    def _empty(self) -> None:
        """Drop the tokens of the first text."""

    def _forget_first(self) -> None:
        if self.info.tree_capable:
            self._empty()
        else:  # no other text is beside it
            self._recurrent.forget()
            self._memory.clear()
            self._texts.clear()
