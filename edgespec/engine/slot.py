"""One slot: a text of the target and of its drafters, with the tokens that they have committed.

Keeps their KV caches consistent. Knows models through their port, and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.passes import Passes
from edgespec.engine.request import ActiveRequest
from edgespec.ports import LanguageModel, Progress
from edgespec.tracing.spans import Trace, Track
from edgespec.tree import TokenTree


class Slot:
    """A place for one text in a target and its drafters."""

    def __init__(
        self,
        target: LanguageModel,
        grower: TreeGrower | None,
        passes: Passes,
        number: int = 0,
    ) -> None:
        """`target` is a view of text `number` of the model."""
        self.target = target
        self.grower = grower
        self.passes = passes
        self.number = number
        self.committed: list[int] = []
        """Tokens of the target's committed prefix; each drafter has committed a prefix of it."""
        self.n_tiled = 0
        """Committed tokens computed in tiles of `prompt_tile`, as long prompts are."""
        self.n_drafted = 0
        """Committed tokens that the drafters have read."""
        self.running: ActiveRequest | None = None
        """The active request."""
        self.last_use = 0
        """Sequence number of the latest request, over all slots."""

    @property
    def clock(self) -> Callable[[], float]:
        return self.passes.clock

    @property
    def trace(self) -> Trace:
        return self.passes.trace

    @property
    def n_unread(self) -> int:
        """Tokens that the drafters must read before they can guess."""
        n_tokens = len(self.committed)
        if self.grower is None:
            return n_tokens - self.n_drafted
        return self.grower.n_unread(self.n_drafted, n_tokens)

    @property
    def is_full(self) -> bool:
        """True if the target's context is full."""
        return len(self.committed) >= self.target.info.n_ctx

    def check_cancelled(self) -> None:
        """Raise Cancelled if the running request was cancelled."""
        if self.running is not None:
            self.running.check_cancelled()

    def prefill(self, tokens: Sequence[int], progress: Progress | None) -> None:
        """Commit `tokens` to the target in batches of the prompt size."""
        self.target.prefill(tokens, progress)
        self.committed += tokens
        if 0 < self.target.info.prompt_tile <= len(self.committed):
            self.n_tiled = len(self.committed)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Make the target's KV of `path` final."""
        with self.trace.span(Track.ENGINE, "commit"):
            self.target.commit(tree, path)
        self.committed += (int(tree.token[node]) for node in path)

    def catch_up(self, grower: TreeGrower, except_last: int = 0) -> None:
        """Let the drafters read the committed tokens that they have not read: a prompt, or rounds
        without guesses."""
        text = self.committed[: len(self.committed) - except_last]
        if grower.is_behind(text):
            with self.trace.span(Track.ENGINE, "catch up"):
                grower.catch_up(text)
        self.n_drafted = len(text)

    def rewind(self, n_tokens: int) -> None:
        """Truncate the models to at most `n_tokens` of the committed text; drops provisional KV."""
        self.target.truncate(min(n_tokens, self.target.n_committed))
        del self.committed[min(n_tokens, self.target.n_committed) :]
        self.n_tiled = min(self.n_tiled, len(self.committed))
        self.n_drafted = min(self.n_drafted, len(self.committed))
        if self.grower is not None:
            self.grower.rewind(len(self.committed))

    def cancel(self) -> None:
        """Make a running call of a model raise Cancelled soon; callable from any thread."""
        self.target.cancel()
        if self.grower is not None:
            self.grower.cancel()
