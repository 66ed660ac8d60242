"""Prefixes of texts on disk: those of a pair's slots, in one folder.

What a stored prefix consists of, and by what names it is found, is its chain's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.errors import StateError, UsageError, setting
from edgespec.extras import installed_version
from edgespec.files.sampled import sampled_digest
from edgespec.memory.process import processor
from edgespec.ports import LanguageModel
from edgespec.settings.base import expanded
from edgespec.state.blocks import BlockFolder
from edgespec.state.chains import MIN_TOKENS, BlockChain
from edgespec.state.checkpoint_chain import CheckpointChain

FORMAT = 4


class SlotPrefixes:
    """The stored texts that one slot of the target and its draft can go on with."""

    def __init__(self, folder: BlockFolder, target: BlockChain, draft: BlockChain | None) -> None:
        # a chain of checkpoints replaces all of the text: prefixes of any length are stored
        self.block_tokens = 1 if isinstance(target, CheckpointChain) else target.block_tokens
        self.troubles = folder.troubles
        """Warnings for users that nobody was told."""
        self._target, self._draft = target, draft
        self._chains = [target] if draft is None else [target, draft]

    def begin(self, client: str) -> None:
        """Use the texts of `client` from now on: nobody else's are found, nor kept for others."""
        for chain in self._chains:
            chain.begin(client)

    def n_available(self, text: Sequence[int]) -> int:
        """Number of leading tokens of `text` that `load` can load, a multiple of `block_tokens`."""
        return self._target.n_available(text)

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Append the whole blocks of `text` behind its first `n_held` tokens to the target; returns
        how many it holds then, which are fewer if files are damaged. `check` is polled and may
        raise."""
        if n_held % self.block_tokens:  # layers with windows could not go back to a block's end
            n_held = self._target.empty()
        return self._target.load(text, n_held, check)

    def load_draft(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> None:
        """`load` of the draft, as far as its blocks are stored."""
        if self._draft is not None and n_held % self._draft.block_tokens == 0:
            self._draft.load(text, n_held, check)

    def keep(self, text: Sequence[int], n_tokens: int, n_draft: int) -> bool:
        """Store the next block of the slot's text that is not kept yet; False if there is none.

        The target holds the first `n_tokens` of the text for good, the draft `n_draft`.
        """
        if n_tokens < MIN_TOKENS:
            return False
        if self._target.keep(text, n_tokens):
            return True
        return self._draft is not None and self._draft.keep(text, min(n_tokens, n_draft))

    def rewind(self, n_tokens: int) -> None:
        """The slot's text was cut to `n_tokens`."""
        for chain in self._chains:
            chain.rewind(n_tokens)


class PrefixCache:
    """A folder of prefixes of the texts of one pair."""

    def __init__(
        self, path: Path, max_bytes: int, target: LanguageModel, draft: LanguageModel | None
    ) -> None:
        """Raises UsageError if the target's state cannot be stored, or the folder not be used."""
        if not target.info.needs_checkpoints and not target.info.block_tokens:
            raise UsageError(
                f"{setting.prompt_cache}: the state of {target.info.name} has no parts that could "
                "be stored: leave it out"
            )
        self.folder = BlockFolder(expanded(str(path)), max_bytes)
        self._target = target
        self._target_root = _root(target)
        # a head's cache also needs features of the target
        is_stored = draft is not None and draft.info.block_tokens and not draft.info.reads_features
        self._draft = draft if is_stored else None
        self._draft_root = _root(self._draft) if self._draft is not None else ""

    def place(self, slot: int) -> SlotPrefixes:
        chain = CheckpointChain if self._target.info.needs_checkpoints else BlockChain
        target, draft = chain(self.folder, self._target, self._target_root, slot), None
        if self._draft is not None and slot < self._draft.info.n_slots:
            draft = BlockChain(self.folder, self._draft, self._draft_root, slot)
        return SlotPrefixes(self.folder, target, draft)


def _root(model: LanguageModel) -> str:
    """Digest of everything besides a text that its KV depends on. Raises StateError if the model's
    files cannot be read."""
    assert model.state_origin is not None
    try:
        of_files = sampled_digest(model.state_origin.files)
    except OSError as error:
        raise StateError(f"{model.info.name} cannot be read: {error}") from error
    name, instruction_sets = processor()  # kernels that libraries choose differ in rounding
    content = {
        "format": FORMAT,
        "edgespec": installed_version(),
        "processor": [name, *sorted(instruction_sets)],
        "fingerprint": of_files,
        "settings": dict(model.state_origin.settings),
        "tokens of a block": model.info.block_tokens,
        "tokens of a tile": model.info.prompt_tile,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
