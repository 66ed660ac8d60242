"""The port of whatever guesses: a draft model, a lookup in text that was seen.

It says what the engine may ask of a drafter. It knows neither models nor trees' growth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from edgespec.engine.drafting.remembering import Numbers
from edgespec.engine.outcome import Rehearsed
from edgespec.tree import TokenTree


class Guess(NamedTuple):
    """A token that may follow a node."""

    token: int
    confidence: float
    """The chance that it stands if the node does: calibrated by what stood so far."""
    probability: float
    """Probability that the drafter itself gives the token."""
    source: str
    """Name of the drafter that guessed it."""


class Belief(Protocol):
    """Learnt state: a value, kept for each sampling temperature and between runs."""

    def numbers(self) -> Numbers:
        """State for `recalled`."""

    def recalled(self, numbers: Numbers) -> Self:
        """The belief with the state of another run; missing or invalid numbers are left out."""


class Learner(Protocol):
    """Protocol of objects that hold a belief."""

    source: str
    """Its name in the tree, unique among the drafters of an engine."""
    belief: Any
    """A `Belief` of its own kind: how far its guesses are to be trusted."""

    def fresh_belief(self, temperature: float) -> Belief:
        """The first one, where the target samples at `temperature`."""


@runtime_checkable
class Rehearses(Protocol):
    """A drafter that can be tried on a text without having read what stands before."""

    def rehearse(self, text: Sequence[int]) -> Sequence[Rehearsed]:
        """Its guesses for the tokens of `text`, the end of the committed tokens.

        The drafter's own state of the text does not change."""


class Drafter(Learner, Protocol):
    """Guesses what follows the nodes of a tree that others may grow, too.

    It never touches the tree: whoever grows it asks for guesses and hangs them. Nodes are known by
    `tree.key[node]`, which survives re-rooting.
    """

    is_free: bool
    """True if a step costs next to nothing, so that every node is worth one."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes that `step` may be asked about, ascending; each one's parent was asked about, or is
        open, too."""

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """Find out what follows `nodes`, parents first; returns those that there was room for."""

    def guesses(self, key: int) -> Sequence[Guess] | None:
        """Guesses for the token after the node of that key, best first; None where the drafter was
        not asked."""

    def witness(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """A pass of the target is over: its `logits` [len(nodes), n_vocab], after each of `nodes`.

        They also say what it nearly picked, and what follows guesses that did not stand.
        """

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """The text went down `path`, from the root, and on to `root`, a child of the path's end.

        The drafter learns from it how far its guesses are to be trusted, and forgets nodes that are
        not below `root`.
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
