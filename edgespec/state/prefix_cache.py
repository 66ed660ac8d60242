"""Prefixes of texts on disk: the KV of blocks of tokens, found by all tokens up to their end.

The name of a block is a hash of everything that its bytes depend on: the model, its settings, the
owner of the text, and the tokens of this block and of those before it. So the longest common prefix
of a text with all earlier ones is found without an index, and texts share what they have in common.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edgespec.errors import EdgespecError, StateError, UsageError
from edgespec.extras import installed_version
from edgespec.ports import LanguageModel
from edgespec.ports.features import ReadsFeatures
from edgespec.ports.state import KeepsBlocks
from edgespec.state.blocks import BlockFolder
from edgespec.state.keeper import instruction_sets, state_of

MIN_TOKENS = 64
"""Shorter texts are not stored."""
FORMAT = 1


class BlockChain:
    """The blocks of one slot's text in one model, and how many of them are stored."""

    def __init__(self, folder: BlockFolder, model: KeepsBlocks, root: str, slot: int) -> None:
        """`root` names what all of the model's blocks depend on."""
        self.block_tokens = model.block_tokens
        self._folder = folder
        self._model = model
        self._root = root
        self._slot = slot
        self._owner = ""
        self._names: list[str] = []
        """Names of the first blocks of the slot's text."""
        self._n_stored = 0
        """Number of blocks that are known to be stored."""
        self._n_doubted = 0
        """Number of blocks that are written even if there are files, as one was damaged."""

    def begin(self, owner: str) -> None:
        if owner != self._owner:
            self._owner = owner
            self.rewind(0)

    def names(self, text: Sequence[int]) -> list[str]:
        """Names of all whole blocks of a text."""
        found, n = [], self.block_tokens
        name = hashlib.sha256(f"{self._root} {self._owner}".encode()).hexdigest()
        for begin in range(0, len(text) - n + 1, n):
            name = self._next(name, text[begin : begin + n])
            found.append(name)
        return found

    def stored(self, text: Sequence[int]) -> list[str]:
        """Names of the leading blocks of a text that are stored."""
        found = []
        for name in self.names(text):
            if not self._folder.has(name):
                break
            found.append(name)
        return found

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Append the blocks of `text` behind the first `n_held` tokens to the model, which holds
        them; returns how many it holds then."""
        n, names = self.block_tokens, self.names(text)
        for name in names[n_held // n :]:
            check()
            if not self._load_block(name):
                self._n_doubted = len(names)
                break
            n_held += n
        self._names = names[: n_held // n]
        self._n_stored = len(self._names)
        self._folder.touch(self._names)
        return n_held

    def _load_block(self, name: str) -> bool:
        """Append a block to the model; False if it is missing or damaged."""
        block = self._folder.read(name)
        if block is None:
            return False
        try:
            self._model.read_block(block, self._slot)
        except StateError:
            self._folder.delete(name)
            return False
        return True

    def keep(self, text: Sequence[int], n_tokens: int) -> bool:
        """Store the next block of the slot's text, which has `n_tokens`, that is not stored yet;
        False if there is none."""
        n, place = self.block_tokens, self._n_stored
        if (place + 1) * n > n_tokens or not self._folder.is_writing:
            return False
        if len(self._names) <= place:
            self._names = self.names(text[: n_tokens - n_tokens % n])
        name = self._names[place]
        if place < self._n_doubted or not self._folder.has(name):
            try:
                self._folder.write(name, self._model.write_block(place * n, self._slot))
            except EdgespecError as error:
                self._folder.stop(str(error))
        self._n_stored = place + 1
        if (self._n_stored + 1) * n > n_tokens:
            self._folder.touch(self._names[: self._n_stored])
        return True

    def rewind(self, n_tokens: int) -> None:
        n_blocks = n_tokens // self.block_tokens
        del self._names[n_blocks:]
        self._n_stored = min(self._n_stored, n_blocks)
        self._n_doubted = min(self._n_doubted, n_blocks)

    @staticmethod
    def _next(name: str, tokens: Sequence[int]) -> str:
        content = np.array(tokens, "<i4").tobytes()
        return hashlib.sha256(bytes.fromhex(name) + content).hexdigest()


class SlotPrefixes:
    """The texts of one slot in the target and its draft; implements `PrefixPlace`."""

    def __init__(self, folder: BlockFolder, target: BlockChain, draft: BlockChain | None) -> None:
        self.block_tokens = target.block_tokens
        self._folder = folder
        self._target = target
        self._draft = draft
        self._chains = [target] if draft is None else [target, draft]

    def begin(self, owner: str) -> None:
        for chain in self._chains:
            chain.begin(owner)

    def n_available(self, text: Sequence[int]) -> int:
        return len(self._target.stored(text)) * self.block_tokens

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        return self._target.load(text, n_held, check)

    def load_draft(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        draft = self._draft
        if draft is None or n_held % draft.block_tokens:
            return n_held
        return draft.load(text, n_held, check)

    def keep(self, text: Sequence[int], n_tokens: int, n_draft: int) -> bool:
        if n_tokens < MIN_TOKENS:
            return False
        if self._target.keep(text, n_tokens):
            return True
        return self._draft is not None and self._draft.keep(text, min(n_tokens, n_draft))

    def rewind(self, n_tokens: int) -> None:
        for chain in self._chains:
            chain.rewind(n_tokens)

    def take_trouble(self) -> str | None:
        return self._folder.take_trouble()


class PrefixCache:
    """A folder of prefixes of the texts of one pair."""

    def __init__(
        self, path: Path, max_bytes: int, target: LanguageModel, draft: LanguageModel | None
    ) -> None:
        """Raises UsageError if the target cannot store blocks, or the folder cannot be used."""
        if not isinstance(target, KeepsBlocks) or not target.block_tokens:
            raise UsageError(
                f"--prefix-cache: the state of {target.info.name} has no parts that could be "
                "stored: leave it out; `chat` and `generate` have --prompt-cache for such models"
            )
        self.folder = BlockFolder(path.expanduser(), max_bytes)
        self._target = target
        self._target_root = _root(target, target)
        self._draft = draft if isinstance(draft, KeepsBlocks) and draft.block_tokens else None
        if isinstance(draft, ReadsFeatures):  # a head's cache also needs features of the target
            self._draft = None
        self._draft_slots = 0
        if draft is not None and self._draft is not None:
            self._draft_slots = draft.info.n_slots
            self._draft_root = _root(draft, self._draft)

    def place(self, slot: int) -> SlotPrefixes:
        draft = None
        if self._draft is not None and slot < self._draft_slots:
            draft = BlockChain(self.folder, self._draft, self._draft_root, slot)
        target = BlockChain(self.folder, self._target, self._target_root, slot)
        return SlotPrefixes(self.folder, target, draft)


def _root(model: LanguageModel, keeps: KeepsBlocks) -> str:
    """Digest of everything besides a text that its KV depends on."""
    state = state_of(model.info.name, keeps.state_origin)
    content = {
        "format": FORMAT,
        "edgespec": installed_version(),
        "processor": instruction_sets(),
        "fingerprint": state.fingerprint,
        "settings": dict(state.settings),
        "tokens of a block": keeps.block_tokens,
        "tokens of a tile": model.info.prompt_tile,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
