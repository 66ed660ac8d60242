"""Optional ports of a target and of a draft that reads the target's hidden states.

The features of a token are the inputs of some of the target's layers at its position. They exist
only for committed tokens; those of rejected guesses are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from edgespec.ports.language_model import LanguageModel

Take = Callable[[int, np.ndarray], None]
"""Receives features of consecutive tokens: the position of the first token, and float32
[tokens, layers, values]. The array is valid only during the call."""


@runtime_checkable
class GivesFeatures(Protocol):
    """Optional protocol of a model that gives hidden states of the tokens committed to slot 0."""

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        """Start calling `take` with the inputs of `layers` for each token that is committed.

        `evaluate` does so after each pass over a prompt, and `commit`. Features do not depend on
        the batch in which a token was computed. Tokens committed by loading a saved state or by
        sharing another slot's prefix have none. Raises UsageError for layers that the model cannot
        give.
        """


@runtime_checkable
class OffersFeatures(Protocol):
    """Optional protocol of a prepared model that can be loaded to give features."""

    def offer_features(self, layers: Sequence[int], n_values: int) -> None:
        """Have `load` make the inputs of `layers`, each of `n_values`, available.

        Call it before `needs`. Raises ModelError if the model has no such layers.
        """


@runtime_checkable
class WantsFeatures(Protocol):
    """Optional protocol of a prepared draft that reads features of a target."""

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the target whose inputs it reads."""

    @property
    def feature_values(self) -> int:
        """Values of each layer's input."""


@runtime_checkable
class ReadsFeatures(LanguageModel, Protocol):
    """Optional protocol of a draft model: a head that guesses from a target's features.

    The head reads a token together with the features of the token before it: the target's if they
    are known, otherwise those that the head itself predicted there. The first token of a text has
    no features before it and is read only as a part of a prompt.
    """

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the target whose inputs it reads."""

    def take_features(self, position: int, rows: np.ndarray) -> None:
        """Store the features of committed tokens; implements `Take`."""

    def drop_features(self, n_tokens: int) -> None:
        """Drop the features of all tokens after the text's first `n_tokens`."""

    def lacks_features(self, n_tokens: int) -> bool:
        """True if features are missing that reading the first `n_tokens` or what follows needs."""


@runtime_checkable
class GuessesBlocks(ReadsFeatures, Protocol):
    """Optional protocol of a head that guesses several tokens in one pass (block diffusion).

    The head reads a token together with its own features. What it predicts after a node depends
    only on the node's depth, and on its token if guesses are chained; `evaluate` takes one pass in
    all for one text and root.
    """

    @property
    def block_guesses(self) -> int:
        """Number of consecutive tokens that a pass guesses."""

    @property
    def is_chained(self) -> bool:
        """True if guesses after a node also depend on its token."""
