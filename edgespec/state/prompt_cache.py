"""A file that keeps what the latest prompt cost, so that the next one that begins alike need not.

Knows when state is taken up and when it is written; how, the keeper knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from edgespec.engine.round import common_length
from edgespec.errors import EdgespecError
from edgespec.state.file import check_place
from edgespec.state.keeper import StateKeeper


class Notes(Protocol):
    """Where a user is told something."""

    def note(self, text: str) -> None: ...


class PromptCache:
    """One file, for one prompt after the other.

    A file of another model is refused, and what is no state is left alone; state of another prompt
    makes room for this one's, which a note says.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Raises StateError at once where the file can never serve."""
        self.path = path = Path(path)
        self.read_only = read_only
        self.failure: EdgespecError | None = None
        """Why the file could not be written: no reason to lose the text."""
        check_place(path)


class CachedPrompt:
    """A prompt cache at one session's work; implements `edgespec.engine.request.Keeper`."""

    def __init__(self, cache: PromptCache, keeper: StateKeeper) -> None:
        self._cache = cache
        self._keeper = keeper
        self._n_replaced = 0

    def before_prompt(self, prompt: Sequence[int], tally: Notes) -> None:
        """Take up what the file has, if that is more of the prompt than the models hold."""
        self._keeper.check_possible()
        path = self._cache.path
        if not check_place(path):
            return
        kept = self._keeper.peek(path)
        n_alike = common_length(kept.tokens, prompt[:-1])
        if n_alike < len(kept.tokens):
            self._n_replaced = len(kept.tokens)
            if not self._keeper.can_rewind:
                return
        if n_alike > common_length(self._keeper.held, prompt[:-1]):
            self._keeper.load(path)

    def after_prompt(self, n_prefilled: int, tally: Notes) -> None:
        """Write it where reading took passes that the file can save the next time."""
        if not n_prefilled or self._cache.read_only:
            return
        path = self._cache.path
        try:
            kept = self._keeper.save(path)
        except EdgespecError as error:
            self._cache.failure = error
            tally.note(f"the prompt cache was not written: {error}")
            return
        if self._n_replaced:
            tally.note(
                f"{path} held {self._n_replaced:,} tokens of another text; now it holds the "
                f"{len(kept.tokens):,} of this prompt"
            )
