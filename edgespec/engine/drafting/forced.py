"""Guesses for free: tokens that the grammar of a text forces."""

from __future__ import annotations

from edgespec.engine.pacer import Limits
from edgespec.engine.sampling import Sampler
from edgespec.tree import ROOT, TokenTree

SOURCE = "grammar"
CONFIDENCE = 0.99
"""A grammar forces bytes; that the target writes them in these tokens is all but sure."""


def hang_forced(tree: TokenTree, sampler: Sampler, limits: Limits) -> None:
    """Add the tokens that must follow the root, as one branch, as far as a pass can verify it."""
    node = ROOT
    for token in sampler.forced(min(limits.max_nodes - 1, limits.max_depth)):
        child = tree.child(node, token)
        if child is None:
            if tree.is_full:
                return
            child = tree.add(node, token, CONFIDENCE, source=SOURCE)
        node = child
