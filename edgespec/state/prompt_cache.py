"""A file with the state after the latest prompt, for later prompts with the same beginning.

Decides when state is loaded and saved; the keeper does both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.errors import EdgespecError
from edgespec.state.file import check_place
from edgespec.state.keeper import StateKeeper
from edgespec.tree import common_length


class PromptCache:
    """A prompt cache in one file, for successive prompts.

    State of another model is refused, and a file that is not a state file is left unchanged. State
    of another prompt is replaced, with a note.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Raises StateError if there can be no state file at `path`."""
        self.path = path = Path(path)
        self.read_only = read_only
        self.failure: EdgespecError | None = None
        """Error of the latest failed write, which does not end a generation."""
        check_place(path)


class CachedPrompt:
    """A prompt cache in use by one session; implements `Keeper` of a request."""

    def __init__(self, cache: PromptCache, keeper: StateKeeper) -> None:
        self._cache = cache
        self._keeper = keeper
        self._n_replaced = 0
        self._has_all = False
        """True if the file holds the whole prompt."""

    def before_prompt(self, prompt: Sequence[int], note: Callable[[str], None]) -> None:
        """Load the file if it covers more of the prompt than the models' caches."""
        self._keeper.check_possible()
        path = self._cache.path
        if not check_place(path):
            return
        kept = self._keeper.peek(path)
        usable = prompt if self._keeper.can_rewind else prompt[:-1]
        n_alike = common_length(kept.tokens, usable)
        self._has_all = n_alike == len(prompt)
        if n_alike < len(kept.tokens):
            self._n_replaced = len(kept.tokens)
            if not self._keeper.can_rewind:
                return
        if n_alike > common_length(self._keeper.held, usable):
            self._keeper.load(path)

    def after_prompt(self, n_prefilled: int, note: Callable[[str], None]) -> None:
        """Save the state if prefill computed tokens of the prompt."""
        if not n_prefilled or self._has_all or self._cache.read_only:
            return
        path = self._cache.path
        try:
            kept = self._keeper.save(path)
        except EdgespecError as error:
            self._cache.failure = error
            note(f"the prompt cache was not written: {error}")
            return
        if self._n_replaced:
            note(
                f"{path} held {self._n_replaced:,} tokens of another text; now it holds the "
                f"{len(kept.tokens):,} of this prompt"
            )
