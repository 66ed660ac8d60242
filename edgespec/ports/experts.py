"""The optional port of mixtures that know which of their experts tokens choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class KnowsExperts(Protocol):
    """A model that pages experts, and begins warm where an earlier run's choices are known."""

    @property
    def expert_shares(self) -> Sequence[bytes]:
        """Shares of tokens that chose each expert, a byte for each, layer by layer; empty if
        experts are not paged."""

    def expect_experts(self, shares: Sequence[bytes]) -> None:
        """Begin with the shares of an earlier run; those of another model are ignored."""
