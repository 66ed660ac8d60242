"""The port through which an embedding model is used: texts become vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from edgespec.ports.language_model import Vocabulary
from edgespec.values import ModelInfo, PagingStats


class EmbeddingModel(ABC):
    """A loaded embedding model, which one thread uses at a time."""

    info: ModelInfo
    vocabulary: Vocabulary
    n_values: int
    """Length of a vector."""

    @abstractmethod
    def embed(self, tokens: Sequence[int]) -> np.ndarray:
        """The vector of a text, float32 [n_values], pooled as the model's file says.

        It depends on the tokens alone. Raises ContextOverflow, WeightReadError and Cancelled.
        """

    @abstractmethod
    def paging(self) -> PagingStats:
        """Paging statistics since the model was loaded."""

    @abstractmethod
    def cancel(self) -> None:
        """Make a running `embed` raise `Cancelled` soon; from any thread."""

    @abstractmethod
    def close(self) -> None: ...
