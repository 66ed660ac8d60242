"""The stored blocks of one text in one model, found by all tokens up to their end.

The name of a block is a hash of everything that its bytes depend on: the model, its settings, the
client whose text it is, and the tokens of this block and of those before it. So the longest common
prefix of a text with all earlier ones is found without an index, and texts share what they have in
common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np

from edgespec.errors import EdgespecError, StateError
from edgespec.ports import LanguageModel
from edgespec.state.blocks import BlockFolder

MIN_TOKENS = 64
"""Shorter texts are not stored."""
TOKENS_OF_A_NAME = 64
"""Tokens that are hashed at once, if the model has no blocks."""


class BlockChain:
    """The blocks of one slot's text in one model, and how many of them are stored."""

    def __init__(self, folder: BlockFolder, model: LanguageModel, root: str, slot: int) -> None:
        """`root` names what all of the model's blocks depend on."""
        self.block_tokens = model.info.block_tokens or TOKENS_OF_A_NAME
        self._folder = folder
        self._model = model
        self._root = root
        self._slot = slot
        self._client = ""
        self._names: list[str] = []
        """Names of the first blocks of the slot's text."""
        self._n_stored = 0
        """Number of blocks that are known to be stored."""

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
        """Number of leading tokens of a text that `load` can load."""
        return self.block_tokens * sum(1 for _ in takewhile(self._folder.has, self.names(text)))

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Append the blocks of `text` behind the first `n_held` tokens, a multiple of
        `block_tokens`, to the model, which holds them; returns how many it holds then."""
        names, n_loaded = self.names(text), n_held // self.block_tokens
        for name in names[n_loaded:]:
            check()
            try:
                self._model.read_block(self._folder.read(name), self._slot)
            except StateError:
                for later in names[n_loaded:]:  # perhaps damaged, too
                    self._folder.delete(later)
                break
            n_loaded += 1
        self._names, self._n_stored = names[:n_loaded], n_loaded
        self._folder.touch(self._names)
        return n_loaded * self.block_tokens

    def empty(self) -> int:
        """Drop the model's text; returns 0, the tokens that it holds then."""
        self._model.truncate(0, self._slot)
        self.rewind(0)
        return 0

    def keep(self, text: Sequence[int], n_tokens: int) -> bool:
        """Store the next block of the slot's text, which has `n_tokens`, that is not stored yet;
        False if there is none."""
        n, place = self.block_tokens, self._n_stored
        if (place + 1) * n > n_tokens or not self._folder.is_writing:
            return False
        if len(self._names) <= place:
            self._names = self.names(text[: n_tokens - n_tokens % n])
        name = self._names[place]
        if not self._folder.has(name):
            try:
                self._folder.write(name, self._model.write_block(place * n, self._slot))
            except EdgespecError as error:
                self._folder.stop(str(error))
        self._n_stored += 1
        if (self._n_stored + 1) * n > n_tokens:
            self._folder.touch(self._names[: self._n_stored])
        return True

    def rewind(self, n_tokens: int) -> None:
        """The slot's text was cut to `n_tokens`."""
        n_blocks = n_tokens // self.block_tokens
        del self._names[n_blocks:]
        self._n_stored = min(self._n_stored, n_blocks)

    @property
    def _first_name(self) -> str:
        return hashlib.sha256(f"{self._root} {self._client}".encode()).hexdigest()


def next_name(name: str, tokens: Sequence[int]) -> str:
    """Name of the text that continues the one of this name with `tokens`."""
    content = np.array(tokens, "<i4").tobytes()
    return hashlib.sha256(bytes.fromhex(name) + content).hexdigest()
