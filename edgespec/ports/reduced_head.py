"""Optional port of a draft whose head rates some of the target's tokens only (FR-Spec).

A head over the frequent tokens takes less memory and time (Zhao et al., arXiv 2502.14856).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from edgespec.ports.language_model import LanguageModel


@runtime_checkable
class RatesSomeTokens(Protocol):
    """A draft whose logits [nodes, columns] are for some tokens; it reads all of them."""

    @property
    def token_ids(self) -> np.ndarray:
        """Token of each column of the logits, ascending."""


@runtime_checkable
class FitsVocabulary(Protocol):
    """A prepared draft without a token table, made for one vocabulary."""

    @property
    def vocabulary_fingerprint(self) -> str:
        """Fingerprint of the vocabulary whose token ids it uses."""


@runtime_checkable
class CanBeTrimmed(Protocol):
    """A prepared target from which a draft can be made."""

    def trimmed_bytes(self, bits: float) -> int:
        """Estimated size of a draft with so many bits per weight; 0 if none can be made."""


def token_ids_of(model: LanguageModel, n_vocab: int) -> np.ndarray | None:
    """Token of each column of a model's logits, of the first `n_vocab` tokens; None for a model
    that rates all tokens in their order."""
    if isinstance(model, RatesSomeTokens):
        return model.token_ids[: np.searchsorted(model.token_ids, n_vocab)]
    return None
