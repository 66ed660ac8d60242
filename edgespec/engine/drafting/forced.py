"""Guesses from a grammar: tokens that it forces, which cost no draft step."""

from __future__ import annotations

from edgespec.engine.planning.pacer import Limits
from edgespec.engine.sampling import Sampler
from edgespec.tree import ROOT, TokenTree

SOURCE = "grammar"
CONFIDENCE = 0.99
"""A grammar forces bytes, which the target may still split into other tokens."""


def hang_forced(tree: TokenTree, sampler: Sampler, limits: Limits) -> None:
    """Add the tokens that must follow the root as one branch, within the limits of a pass."""
    node = ROOT
    for token in sampler.forced(min(limits.max_nodes - 1, limits.max_depth)):
        child = tree.child(node, token)
        if child is None:
            if tree.is_full:
                return
            child = tree.add(node, token, CONFIDENCE, source=SOURCE)
        node = child
