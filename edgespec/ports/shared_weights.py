"""Optional port of a draft that computes with weights of its target (SubSpec, arXiv 2509.18344).

Where the target pins weights, a draft made from it needs no coarser copies of them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from edgespec.ports.language_model import LanguageModel


@runtime_checkable
class BorrowsWeights(Protocol):
    """A draft that is loaded before its target, and borrows from it before its first pass."""

    def borrow_from(self, target: LanguageModel) -> None:
        """Compute with the weights that the plan has the two share. They must stay pinned, and the
        target open."""
