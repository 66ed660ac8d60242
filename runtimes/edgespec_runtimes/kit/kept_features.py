"""Stores features of a tree's nodes until they are committed, for all runtimes.

How a runtime obtains them is its own business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from edgespec.errors import ModelError, UsageError
from edgespec.ports import Take
from edgespec.values import ModelInfo


class KeptFeatures:
    """Hands out the features of one text, each once and in the order of its tokens."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._take: Take | None = None
        self._kept: dict[int, np.ndarray] = {}
        """Features of provisional nodes by their keys: [layers, values]."""

    @property
    def is_wanted(self) -> bool:
        """True once `give` was called."""
        return self._take is not None

    def give(self, take: Take) -> None:
        """Start calling `take` with the features of committed tokens."""
        self._take = take

    def hand_over(self, position: int, rows: np.ndarray) -> None:
        """Hand out features of committed tokens from `position` on, [tokens, layers, values]."""
        if self._take is not None and len(rows):
            self._take(position, rows)

    def keep(self, rows: Mapping[int, np.ndarray]) -> None:
        """Store copies of the features of nodes, by node key."""
        if self._take is not None:
            self._kept |= {key: row.copy() for key, row in rows.items()}

    def commit(self, position: int, path: Sequence[int], keep: Collection[int]) -> None:
        """Hand out the features of committed nodes and drop all others except those in `keep`.

        `path` and `keep` are node keys.
        """
        rows = [self._kept[key] for key in path if key in self._kept]
        if rows and len(rows) == len(path):
            self.hand_over(position, np.stack(rows))
        self._kept = {key: row for key, row in self._kept.items() if key in keep}

    def drop(self) -> None:
        """Drop the features of all provisional nodes."""
        self._kept.clear()


def feature_bytes(n_layers: int, n_values: int, n_rows: int, n_nodes: int) -> int:
    """Bytes of the features of a pass's rows and of the nodes that may be committed after it."""
    return 4 * n_layers * n_values * (n_rows + n_nodes)


def check_layers(info: ModelInfo, width: int, layers: Sequence[int], n_values: int) -> None:
    """Raise ModelError unless the inputs of `layers` exist and have `n_values` values.

    They have `width` values in this model. The first layer's input, the embeddings, is not
    available.
    """
    if n_values != width:
        raise no_features(info, f"they have {width} values and the head reads {n_values}")
    if not all(0 < layer < info.n_layers for layer in layers):
        read = ", ".join(map(str, layers))
        raise no_features(info, f"the head reads layers {read} of 1 to {info.n_layers - 1}")


def no_features(info: ModelInfo, reason: str) -> ModelError:
    """The error for a model that cannot give a head the features it reads."""
    return ModelError(
        f"{info.name} cannot give the inputs of its layers to this head ({reason}): name a head "
        "that was trained for this model, or another draft"
    )


def not_offered(info: ModelInfo, layers: Sequence[int]) -> UsageError:
    """The error for a model that was not loaded to give these features."""
    return UsageError(
        f"{info.name} was loaded without giving the inputs of its layers "
        f"{', '.join(map(str, layers))}: load it together with the head that reads them"
    )
