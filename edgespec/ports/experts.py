"""Optional port of mixtures: statistics of the experts that tokens choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class KnowsExperts(Protocol):
    """A model that pages experts and can start with an earlier run's usage statistics."""

    @property
    def expert_shares(self) -> Sequence[bytes]:
        """Share of tokens that chose each expert, one byte per expert, by layer; empty if experts
        are not paged."""

    def expect_experts(self, shares: Sequence[bytes]) -> None:
        """Start with the `expert_shares` of an earlier run; those of another model are ignored."""
