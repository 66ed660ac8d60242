"""The seam for whoever wants to see what the target said: an observer of rounds.

An observer reads and keeps; nothing that it does reaches a text or a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgespec.engine.acceptance import Accepted
from edgespec.engine.request import ActiveRequest
from edgespec.tree import TokenTree


class RoundObserver(Protocol):
    """Sees every round of every text. Calls come one at a time; none raises."""

    def see_round(
        self,
        request: ActiveRequest,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
        accepted: Accepted,
    ) -> None:
        """See a round: `logits` are the target's after each of the verified `nodes`; the request
        has the accepted tokens. Neither is kept beyond the call."""

    def see_end(self, request: ActiveRequest) -> None:
        """See the end of a text, however it ended."""
