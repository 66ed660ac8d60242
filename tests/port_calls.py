"""Calls of the port with one part: a prompt, or the nodes of one tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.ports import LanguageModel, PassPart, Progress
from edgespec.tree import TokenTree


def prefill(
    model: LanguageModel, tokens: Sequence[int], progress: Progress | None = None, slot: int = 0
) -> None:
    """Append `tokens` to the committed prefix of a slot."""
    model.evaluate([PassPart(slot, reads=tokens)], progress)


def evaluate(
    model: LanguageModel, tree: TokenTree, nodes: Sequence[int], slot: int = 0
) -> np.ndarray:
    """Logits after each of `nodes`, float32 [len(nodes), n_vocab]."""
    return model.evaluate([PassPart(slot, tree, nodes)])[0].copy()
