"""One slot: a place for a text in the target and the sources, and the tokens that it holds.

Keeps their KV caches consistent. `choose_slot` finds the slot of a text, the one in which most of
its prompt is already computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgespec.engine.sources.model_source import ModelSource
from edgespec.engine.sources.source import Source
from edgespec.pool import Pool, common_length
from edgespec.ports import LanguageModel
from edgespec.state.prefix_cache import SlotPrefixes
from edgespec.values import ModelInfo

if TYPE_CHECKING:
    from edgespec.engine.text import Text


class Slot:
    """A place for one text in a target, its sources of guesses and their pool."""

    def __init__(
        self,
        target: LanguageModel,
        number: int,
        sources: Sequence[Source],
        pool: Pool,
        prefixes: SlotPrefixes | None = None,
    ) -> None:
        """`prefixes` stores the slot's texts."""
        self.target = target
        self.number = number
        self.sources = sources
        self._draft = next((one for one in sources if isinstance(one, ModelSource)), None)
        self.pool = pool
        self.prefixes = prefixes
        self.committed: list[int] = []
        """Tokens of the target's committed prefix; each source has committed a prefix of it."""
        self.n_tiled = 0
        """Committed tokens computed in tiles of `prompt_tile`, as long prompts are."""
        self.client = ""
        """Client whose text is committed."""
        self.begun = -math.inf
        """Time at which the latest text began."""
        self.is_free = True
        """True if no text is written here."""

    @property
    def n_leading(self) -> int:
        """Length of the prefix that the draft model holds without a gap."""
        return self._draft.n_leading(self.number) if self._draft else 0

    def rewind(self, n_tokens: int) -> None:
        """Truncate the models to at most `n_tokens` of the committed text; drops provisional KV."""
        n_held = self.target.committed_of(self.number)
        self.target.truncate(min(n_tokens, n_held), self.number)
        del self.committed[min(n_tokens, self.target.committed_of(self.number)) :]
        self.n_tiled = min(self.n_tiled, len(self.committed))
        for source in self.sources:
            source.rewind(self.number, len(self.committed))
        if self.prefixes is not None:
            self.prefixes.rewind(len(self.committed))

    def discard(self) -> None:
        """Drop everything provisional of the text."""
        self.rewind(len(self.committed))
        if self.number in self.pool.root:
            self.pool.bare(self.number)

    def forget(self) -> None:
        """Drop the text, which is stored before."""
        while self.store_block():
            pass
        self.rewind(0)

    def share(self, other: Slot, n_tokens: int) -> None:
        """Hold the first tokens of another slot's text in place of this one's, without computing
        them."""
        self.forget()
        self.client = other.client
        if self.prefixes is not None:
            self.prefixes.begin(self.client)
        self.target.share(other.number, self.number, n_tokens)
        n_tokens = self.target.committed_of(self.number)
        self.committed = other.committed[:n_tokens]
        self.n_tiled = min(other.n_tiled, n_tokens)
        if self._draft and self._draft.n_slots >= self.target.info.n_slots:
            n_shared = min(other.n_leading, n_tokens)
            self._draft.model.share(other.number, self.number, n_shared)

    def store_block(self) -> bool:
        """Store the next block of the committed text that is not stored; False if there is none."""
        if self.prefixes is None:
            return False
        n_tokens = self.n_tiled if self.target.info.prompt_tile else len(self.committed)
        n_leading = min(self.n_leading, len(self.committed))
        return self.prefixes.keep(self.committed, n_tokens, n_leading)

    def n_reusable(self, prompt: Sequence[int], client: str) -> int:
        """Number of leading tokens of a prompt of `client` whose KV the target holds exactly as
        reading all of the prompt would compute it, so that earlier texts do not change the
        output."""
        if self.client != client:
            return 0
        held, info = common_length(self.committed, prompt[:-1]), self.target.info
        if is_tiled(info, prompt):
            held = min(held, self.n_tiled)
            is_whole = held == len(prompt) - 1 and not info.prompts_give_logits
            return held if is_whole else min(held, most_reusable(info, prompt))
        return 0 if self.n_tiled else held

    def load_prefix(self, prompt: Sequence[int], check: Callable[[], None]) -> str | None:
        """Load a longer prefix of `prompt` than the slot holds, if one is stored; returns a warning
        for the user."""
        prefixes, info = self.prefixes, self.target.info
        if prefixes is None:
            return None
        trouble = prefixes.troubles.pop() if prefixes.troubles else None
        prefixes.begin(self.client)
        tiled = is_tiled(info, prompt)
        if info.prompt_tile and not tiled:
            return trouble
        text, n_held = prompt[: most_reusable(info, prompt)], len(self.committed)
        n_available = prefixes.n_available(text)
        if n_available > n_held:
            self.rewind(n_held - n_held % prefixes.block_tokens)
            text = text[:n_available]
            n_held = prefixes.load(text, len(self.committed), check)
            self.committed[:] = text[:n_held]
            self.n_tiled = n_held if tiled else 0
            draft, number = self._draft, self.number
            if draft and number < draft.n_slots and draft.n_read(number) == draft.n_leading(number):
                prefixes.load_draft(text[:n_held], self.n_leading, check)
        return trouble


def is_tiled(info: ModelInfo, prompt: Sequence[int]) -> bool:
    """True if a prompt is computed in tiles, unlike generated tokens."""
    return 0 < info.prompt_tile <= _n_as_prompt(info, prompt)


def most_reusable(info: ModelInfo, prompt: Sequence[int]) -> int:
    """Most leading tokens of `prompt` after which the rest is computed as a part of all of it."""
    if is_tiled(info, prompt):
        return _n_as_prompt(info, prompt) - info.prompt_tile
    return len(prompt) - 1


def _n_as_prompt(info: ModelInfo, prompt: Sequence[int]) -> int:
    """Number of tokens that are computed as a prompt's: without the last one, if it needs a pass of
    its own."""
    return len(prompt) - (not info.prompts_give_logits)


def choose_slot(slots: Sequence[Slot], text: Text) -> Slot:
    """A free slot whose tokens the prompt continues, or else the one that was free longest, which
    then shares the longest prefix of the prompt that any slot has."""
    if len(slots) == 1:
        return slots[0]
    prompt, client = text.prompt, text.terms.client
    best = max(slots, key=lambda slot: slot.n_reusable(prompt, client))
    n_shared = best.n_reusable(prompt, client)
    oldest = min((slot for slot in slots if slot.is_free), key=lambda slot: slot.begun)
    if best is oldest or (best.is_free and n_shared == len(best.committed) > 0):
        return best
    if n_shared > oldest.n_reusable(prompt, client):
        oldest.share(best, n_shared)
    return oldest
