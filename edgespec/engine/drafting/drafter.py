"""The interface of drafters, such as a draft model or a lookup in the text.

Knows neither models nor how trees grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from edgespec.rules.sampling import Sampler
from edgespec.tree import TokenTree


class Opinion(NamedTuple):
    """One drafter's guesses for the token after a node, at least one."""

    source: str
    tokens: Sequence[int]
    """Guesses, best first."""
    probabilities: Sequence[float]
    """The drafter's own share of each, above 0: softmax of its scores, noise included."""
    chance: float
    """Prior probability that one of them is right."""
    kind: str = "any"
    """Class of opinions with about the same hit rate, which is learnt for each class."""
    temperature: float = 1.0
    """Prior temperature at which the probabilities are calibrated, whatever the text's; learnt."""
    is_exhaustive: bool = False
    """True if the drafter rated all tokens, so that unnamed ones are improbable."""


@runtime_checkable
class RemembersTexts(Protocol):
    """A drafter that guesses from earlier texts: of the same client only, as the time of an answer
    would tell others what was guessed."""

    def begin_client(self, client: str) -> None:
        """The next text is one of `client`: use no text of others from now on."""

    def end_text(self, new: Sequence[int]) -> None:
        """A text has ended; `new` are its tokens that no earlier text had computed."""


class Drafter(Protocol):
    """Guesses the tokens after nodes of a tree, which several drafters may share.

    It does not modify the tree: `TreeGrower` requests guesses and adds them. Nodes are identified
    by `tree.key[node]`, which is stable under re-rooting.
    """

    source: str
    """Name in the tree, unique among the drafters of an engine."""
    is_free: bool
    """True if a step costs almost nothing, so that it is made at every node."""

    def begin_text(self, sampler: Sampler) -> None:
        """Begin a text, whose draws `sampler` foresees."""

    def open_nodes(self, tree: TokenTree) -> list[int]:
        """Nodes at which `step` can guess, ascending. The parent of each is open or was a step's
        node."""

    def step(self, tree: TokenTree, nodes: Sequence[int]) -> list[int]:
        """Guess the tokens after `nodes`, parents first; returns the nodes that had room."""

    def opinion(self, key: int) -> Opinion | None:
        """Guesses after the node with this key; None without a step there or without guesses."""

    def observe_logits(self, tree: TokenTree, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Receive the target's `logits` [len(nodes), n_vocab] after each verified node, also after
        rejected guesses."""

    def follow(self, tree: TokenTree, path: Sequence[int], root: int) -> None:
        """Commit the tokens of `path`, which starts at the old root; `root`, a child of its end, is
        the new root.

        Drops all nodes that are not below `root`.
        """

    def obstacle(self, committed: Sequence[int], root_token: int) -> str | None:
        """Reason why it cannot guess after `committed` and `root_token`; None if it can."""

    def catch_up(self, committed: Sequence[int]) -> bool:
        """Read the committed tokens that it has not read; False if there are none."""

    def rest(self) -> None:
        """Drop all nodes and keep the committed text, which may fall behind."""

    def rewind(self, n_tokens: int) -> None:
        """Drop all nodes and all but the first `n_tokens` of the text."""

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` soon; callable from any thread."""
