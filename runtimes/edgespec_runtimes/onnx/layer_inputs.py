"""Copies hidden states of committed tokens from the values between a decoder's layers.

In a cut decoder these are passed from piece to piece; in a whole graph they are further outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec_runtimes.kit.kept_features import KeptFeatures
from edgespec_runtimes.onnx.batches import Batch


class LayerInputs(KeptFeatures):
    """Features of a decoder's first text."""

    def __init__(self, layers: Sequence[int], names: Sequence[str], n_values: int) -> None:
        """`names` are the input values of `layers`."""
        super().__init__(layers)
        self._columns_of: dict[str, list[int]] = {}
        for column, name in enumerate(names):
            self._columns_of.setdefault(name, []).append(column)
        self._n_values = n_values
        self._first_slot = 0
        self.rows = np.empty((0, len(self.layers), n_values), np.float32)
        """Features of the text's tokens or nodes in the latest pass, in their order."""

    def begin_pass(self, batches: Sequence[Batch]) -> None:
        """Allocate rows for these batches."""
        slots = [batch.slots for batch in batches if batch.text == 0 and self.is_wanted]
        self._first_slot = min((int(mine.min()) for mine in slots), default=0)
        n_rows = sum(len(mine) for mine in slots)
        self.rows = np.empty((n_rows, len(self.layers), self._n_values), np.float32)

    def copy(self, batch: Batch, name: str, value: Any) -> None:
        """Copy the new tokens' rows of a batch, if `name` is one of the wanted values."""
        columns = self._columns_of.get(name, ())
        if not columns or batch.text or not self.is_wanted:
            return
        values = value.numpy().reshape(-1, self._n_values)[batch.places]
        for column in columns:
            self.rows[batch.slots - self._first_slot, column] = values
