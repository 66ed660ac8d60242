"""Calls of the port with one part: a prompt, or the nodes of one tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.ports import LanguageModel, PassPart, Progress
from one_tree import OneTree


def prefill(
    model: LanguageModel, tokens: Sequence[int], progress: Progress | None = None, slot: int = 0
) -> None:
    """Append `tokens` to the committed prefix of a slot."""
    model.evaluate([PassPart(slot, reads=tokens)], progress)


def evaluate(
    model: LanguageModel, tree: OneTree, nodes: Sequence[int], slot: int = 0
) -> np.ndarray:
    """Logits after each of `nodes`, float32 [len(nodes), n_vocab]."""
    return model.evaluate([PassPart(slot, tree, nodes)])[0].copy()


def logits_of_a_tree(model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits after the last of `tokens`, and after two that might follow it."""
    prefill(model, tokens[:-1])
    tree = OneTree(tokens[-1], 4)
    for token in tokens[:2]:
        tree.add(0, token, confidence=0.5)
    return evaluate(model, tree, [0, 1, 2]).copy()
