"""The port of whatever guesses: a draft model, a lookup in text that was seen.

It says what the engine may ask of a drafter. It knows neither models nor trees' growth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from edgespec.tree import TokenTree


class Guess(NamedTuple):
    """A token that may follow a node."""

    token: int
    confidence: float
    """Chance that it is accepted if the node is, by all sources' opinions and what was learnt."""
    probability: float
    """Probability that the drafter itself gives the token."""
    source: str
    """Name of the drafter that guessed it."""


class Opinion(NamedTuple):
    """Guesses of one source for the token after a node: one at least."""

    source: str
    tokens: Sequence[int]
    """Guesses, best first."""
    probabilities: Sequence[float]
    """Probability that the drafter itself gives each of them, above 0."""
    chance: float
    """Chance that one of them is right, before anything was learnt."""
    kind: str = "any"
    """Opinions of one kind are about equally often right."""
    temperature: float = 1.0
    """First guess of the temperature at which the probabilities are honest; it is learnt."""
    is_exhaustive: bool = False
    """True if all tokens were weighed, so that those without a guess are improbable."""


@runtime_checkable
class Rehearses(Protocol):
    """A drafter that can be tried on a text that goes on without its guesses."""

    is_free: bool
    """True if a rehearsal costs next to nothing, too."""

    def rehearse(
        self, committed: Sequence[int], n_tokens: int
    ) -> Sequence[tuple[Opinion | None, int]]:
        """Opinions about the last `n_tokens` committed tokens, each with its token.

        Tokens that follow those it has read are read for good. Others are read alone, and its
        state of the text does not change."""


class Drafter(Protocol):
    """Guesses what follows the nodes of a tree that others may grow, too.

    It never touches the tree: whoever grows it asks for guesses and hangs them. Nodes are known by
    `tree.key[node]`, which survives re-rooting.
    """

    source: str
    """Its name in the tree, unique among the drafters of an engine."""
    is_free: bool
    """True if a step costs next to nothing, so that every node is worth one."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes that `step` may be asked about, ascending; each one's parent was asked about, or is
        open, too."""

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """Find out what follows `nodes`, parents first; returns those that there was room for."""

    def opinion(self, key: int) -> Opinion | None:
        """Guesses after the node of that key; None if it was not asked or knows nothing."""

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """A pass of the target is over: its `logits` [len(nodes), n_vocab], after each of `nodes`.

        They also say what it nearly picked, and what follows guesses that did not stand.
        """

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """The text went down `path`, from the root, and on to `root`, a child of the path's end.

        The drafter forgets nodes that are not below `root`.
        """

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Why it cannot guess what follows `root_token` after `committed`; None if it can."""

    def is_behind(self, committed: Sequence[int]) -> bool:
        """True if it has committed tokens to read before it can guess."""

    def catch_up(self, committed: Sequence[int]) -> None:
        """Read the committed tokens that it has not seen."""

    def rest(self) -> None:
        """Forget all nodes; the committed text stays, and may fall behind."""

    def rewind(self, n_tokens: int) -> None:
        """Forget all nodes, and the text but for its first `n_tokens`."""

    def cancel(self) -> None:
        """From any thread: make the running call raise `Cancelled` soon."""
