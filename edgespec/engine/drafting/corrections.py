"""Records the target's distribution where all guesses were wrong, to train the draft later.

Write-only: neither texts nor guesses depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgespec.engine.request import ActiveRequest
from edgespec.engine.round import Round
from edgespec.files.training_texts import Correction, TrainingText
from edgespec.rules.filters import top_tokens

N_SAID = 8
"""Most probable tokens of the target that a correction keeps."""
MAX_TOKENS = 4096
"""Number of last tokens of a text that are kept."""
MAX_CORRECTIONS = 1024
TEXT_BYTES = 2 << 20
"""Memory for the corrections of a text and its serialised form."""
BYTES_PER_TOKEN = 24
"""Temporary memory per token of the vocabulary for one distribution."""


def bytes_needed(n_vocab: int, n_texts: int) -> int:
    """Memory for the corrections of `n_texts` simultaneous texts."""
    return BYTES_PER_TOKEN * n_vocab + n_texts * TEXT_BYTES


class Corrections:
    """Collects the corrections of one text and stores it when it ends."""

    def __init__(self, keep: Callable[[TrainingText], None]) -> None:
        """`keep` stores a text; if it raises OSError, the result gets a note."""
        self._keep = keep
        self._corrections: list[Correction] = []

    def see_round(self, round_: Round, nodes: Sequence[int], logits: np.ndarray) -> None:
        """Record the target's distribution at the end of the accepted path, unless a guess was
        right there.

        `logits` are the target's after `nodes`, [n_nodes, n_vocab]; the round has accepted its
        tokens.
        """
        tree, request, end = round_.tree, round_.slot.request, round_.path[-1]
        rows = {node: row for row, node in enumerate(nodes)}
        guesses = [int(tree.token[child]) for child in tree.children(end) if child in rows]
        if round_.events[-1].token in guesses:
            return
        if len(self._corrections) < MAX_CORRECTIONS:
            row = logits[rows[end]]
            said = top_tokens(row, N_SAID)
            weights = np.exp(row - row.max())
            shares = (weights[said] / weights.sum()).tolist()
            place = len(request.prompt) + len(request.transcript.tokens) - 1
            self._corrections.append(Correction(place, tuple(said.tolist()), tuple(shares)))

    def see_end(self, request: ActiveRequest) -> None:
        """Store a text that ended for any reason."""
        tokens = [*request.prompt, *request.transcript.tokens]
        cut = max(0, len(tokens) - MAX_TOKENS)
        n_prompt = max(1, len(request.prompt) - cut)
        if not request.transcript.tokens:
            return
        shifted = [replace(one, place=one.place - cut) for one in self._corrections]
        kept = [one for one in shifted if one.place >= n_prompt]
        try:
            self._keep(TrainingText(tokens[cut:], n_prompt, kept))
        except OSError as error:
            request.tally.note(f"the text was not kept to learn from: {error.strerror}")
