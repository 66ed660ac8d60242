"""The stored blocks of one text in one model, found by all tokens up to their end.

The name of a block is a hash of everything that its bytes depend on: the model, its settings, the
client whose text it is, and the tokens of this block and of those before it. So the longest common
prefix of a text with all earlier ones is found without an index, and texts share what they have in
common.

Layers with windows may have freed a block before it is stored. Such a hollow block has a name of
its own, and a text goes on only where whole blocks cover a window.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from edgespec.errors import EdgespecError, StateError
from edgespec.ports import LanguageModel
from edgespec.ports.state import FreesWindows, KeepsBlocks
from edgespec.state.blocks import BlockFolder

MIN_TOKENS = 64
"""Shorter texts are not stored."""
HOLLOW = "-hollow"
"""End of the name of a block that lacks what layers with windows have freed."""


class BlockChain:
    """The blocks of one slot's text in one model, and how many of them are stored."""

    def __init__(
        self, folder: BlockFolder, model: LanguageModel, block_tokens: int, root: str, slot: int
    ) -> None:
        """`root` names what all of the model's blocks depend on."""
        self.block_tokens = block_tokens
        self._folder = folder
        self._model = model
        self._root = root
        self._slot = slot
        self._windows = model if isinstance(model, FreesWindows) and model.n_window else None
        self._client = ""
        self._names: list[str] = []
        """Names of the first blocks of the slot's text."""
        self._stored: list[str] = []
        """Files of the blocks that are known to be stored."""
        self._n_doubted = 0
        """Number of blocks that are written even if there are files, as one was damaged."""

    def begin(self, client: str) -> None:
        """Use the texts of `client` from now on."""
        if client != self._client:
            self._client = client
            self.rewind(0)

    def names(self, text: Sequence[int]) -> list[str]:
        """Names of all whole blocks of a text."""
        found, n = [], self.block_tokens
        name = self._first_name
        for begin in range(0, len(text) - n + 1, n):
            name = next_name(name, text[begin : begin + n])
            found.append(name)
        return found

    def n_available(self, text: Sequence[int]) -> int:
        """Number of leading tokens of a text that `load` can load.

        If more are known, the window after them is kept from now on, as texts diverge there.
        """
        n, windows = self.block_tokens, self._windows
        n_known = n_whole = n_usable = 0
        for name in self.names(text):
            if self._folder.has(name):
                n_whole += n
            elif windows and self._folder.has(name + HOLLOW):
                n_whole = 0
            else:
                break
            n_known += n
            if windows is None or n_whole >= min(windows.n_window, n_known):
                n_usable = n_known
        if windows and n_known > n_usable:
            windows.keep_window(n_known, self._slot)
        return n_usable

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Append the blocks of `text` behind the first `n_held` tokens, a multiple of
        `block_tokens`, to the model, which holds them; returns how many it holds then."""
        n = self.block_tokens
        if self._windows:
            text = text[: self.n_available(text)]
        names = self.names(text)
        files = [*names[: n_held // n]]
        for name in names[len(files) :]:
            check()
            file = self._load_block(name)
            if file is None:
                self._n_doubted = len(names)
                break
            files.append(file)
        if self._windows and len(files) < len(names):
            self._model.truncate(self._model.committed_of(self._slot), self._slot)
            del files[self._model.committed_of(self._slot) // n :]
        self._names, self._stored = names[: len(files)], files
        self._folder.touch(files)
        return len(files) * n

    def empty(self) -> int:
        """Drop the model's text; returns 0, the tokens that it holds then."""
        self._model.truncate(0, self._slot)
        self.rewind(0)
        return 0

    def _load_block(self, name: str) -> str | None:
        """Append a block to the model; returns its file, None if it is missing or damaged."""
        model = self._model
        assert isinstance(model, KeepsBlocks)
        for file in (name, name + HOLLOW) if self._windows else (name,):
            block = self._folder.read(file)
            if block is None:
                continue
            try:
                if file == name:
                    model.read_block(block, self._slot)
                elif self._windows:
                    self._windows.read_hollow(block, self._slot)
            except StateError:
                self._folder.delete(file)
                return None
            return file
        return None

    def keep(self, text: Sequence[int], n_tokens: int) -> bool:
        """Store the next block of the slot's text, which has `n_tokens`, that is not stored yet;
        False if there is none."""
        n, place = self.block_tokens, len(self._stored)
        if (place + 1) * n > n_tokens or not self._folder.is_writing:
            return False
        if len(self._names) <= place:
            self._names = self.names(text[: n_tokens - n_tokens % n])
        name, windows = self._names[place], self._windows
        is_whole = windows is None or windows.is_whole(place * n, self._slot)
        file = name if is_whole else name + HOLLOW
        if place < self._n_doubted or not (self._folder.has(name) or self._folder.has(file)):
            self._write_block(file, place * n)
        self._stored.append(file)
        if (len(self._stored) + 1) * n > n_tokens:
            self._folder.touch(self._stored)
        return True

    def _write_block(self, file: str, begin: int) -> None:
        model = self._model
        assert isinstance(model, KeepsBlocks)
        try:
            self._folder.write(file, model.write_block(begin, self._slot))
        except EdgespecError as error:
            self._folder.stop(str(error))

    def rewind(self, n_tokens: int) -> None:
        """The slot's text was cut to `n_tokens`."""
        n_blocks = n_tokens // self.block_tokens
        del self._names[n_blocks:]
        del self._stored[n_blocks:]
        self._n_doubted = min(self._n_doubted, n_blocks)

    @property
    def _first_name(self) -> str:
        return hashlib.sha256(f"{self._root} {self._client}".encode()).hexdigest()


def next_name(name: str, tokens: Sequence[int]) -> str:
    """Name of the text that continues the one of this name with `tokens`."""
    content = np.array(tokens, "<i4").tobytes()
    return hashlib.sha256(bytes.fromhex(name) + content).hexdigest()
