"""Optional ports of a target and of a draft that reads the target's hidden states.

Features of a token are what enters some of the target's layers at its place. Only committed tokens
have some to give: what a guess that did not stand made the target think, nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from edgespec.ports.language_model import LanguageModel

Take = Callable[[int, np.ndarray], None]
"""Receives features of tokens that follow each other: the position of the first one, and float32
[tokens, layers, values]. The array is the giver's again when the call returns."""


@runtime_checkable
class GivesFeatures(Protocol):
    """Optional protocol of a model: hidden states of the tokens that its text 0 commits."""

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        """From now on hand over what enters `layers`, for each token as it is committed: `prefill`
        after each of its passes, `commit` at its end.

        A token has the features of its own context, in whatever batch it was computed. Tokens
        that are committed otherwise, by a saved state or another text's prefix, have none. Raises
        UsageError for layers that the model does not show.
        """


@runtime_checkable
class OffersFeatures(Protocol):
    """Optional protocol of a prepared model: it can be loaded so that it gives features."""

    def offer_features(self, layers: Sequence[int], n_values: int) -> None:
        """Load the model so that it gives the inputs of `layers`, each of `n_values`.

        Comes before `needs`. Raises ModelError where the model has no such layers."""


@runtime_checkable
class WantsFeatures(Protocol):
    """Optional protocol of a prepared draft: it reads features of a target."""

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the target whose inputs it reads."""

    @property
    def feature_values(self) -> int:
        """Values of each layer's input."""


@runtime_checkable
class ReadsFeatures(LanguageModel, Protocol):
    """Optional protocol of a draft model: a head, which guesses from a target's features.

    A token is read with those of the token before it: the target's where they are known, otherwise
    what the head itself predicted when it evaluated that token. The first token of a text is read
    by `prefill` alone, with none.
    """

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the target whose inputs it reads."""

    def take_features(self, position: int, rows: np.ndarray) -> None:
        """Keep the features of committed tokens; implements `Take`."""

    def drop_features(self, n_tokens: int) -> None:
        """Forget those of all but the text's first `n_tokens`."""

    def lacks_features(self, n_tokens: int) -> bool:
        """True if features are missing without which the text's first `n_tokens`, or what follows
        them, cannot be read."""


@runtime_checkable
class GuessesBlocks(ReadsFeatures, Protocol):
    """Optional protocol of a head that guesses several tokens in one pass (block diffusion).

    A token is read with its own features. `evaluate` says what follows a node by its depth, and by
    its token if guesses are chained, whatever else is above it; for one text and root it takes one
    pass in all.
    """

    @property
    def block_guesses(self) -> int:
        """Tokens in a row that a pass guesses."""

    @property
    def is_chained(self) -> bool:
        """True if guesses after a node depend on its token, too."""
