"""A file with the state after the latest prompt, for the next prompt with the same beginning.

Decides when state is loaded and saved; the keeper does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.engine.round import common_length
from edgespec.errors import EdgespecError
from edgespec.ports.text_request import Notes
from edgespec.state.file import check_place
from edgespec.state.keeper import StateKeeper


class PromptCache:
    """One file, for successive prompts.

    A file of another model is refused, and one that is no state is left unchanged; state of another
    prompt is replaced, with a note.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Use the file at `path`. Raises StateError at once if it can never be used."""
        self.path = path = Path(path)
        self.read_only = read_only
        self.failure: EdgespecError | None = None
        """Error of the latest failed write, which does not end a generation; None for none."""
        check_place(path)


class CachedPrompt:
    """A prompt cache in use by one session; implements `Keeper` of a request."""

    def __init__(self, cache: PromptCache, keeper: StateKeeper) -> None:
        self._cache = cache
        self._keeper = keeper
        self._n_replaced = 0

    def before_prompt(self, prompt: Sequence[int], tally: Notes) -> None:
        """Load the file if it has more of the prompt than the models hold."""
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
        """Save the state if tokens of the prompt had to be prefilled."""
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
