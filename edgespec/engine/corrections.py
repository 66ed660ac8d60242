"""Records what the target said where no guess was right, for a draft to learn from later.

It only writes: no text and no guess depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgespec.engine.acceptance import Accepted
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import top_tokens
from edgespec.files.training_texts import Correction, TrainingText
from edgespec.tree import TokenTree

N_SAID = 8
"""Tokens of the target's distribution that are kept where no guess was right."""
MAX_TOKENS = 4096
"""Tokens of a text that are kept, the last ones."""
MAX_CORRECTIONS = 1024
TEXT_BYTES = 2 << 20
"""Memory of a text's corrections, and of its line at the end."""
BYTES_PER_TOKEN = 24
"""Memory for each token of the vocabulary while a distribution is looked at."""


def bytes_needed(n_vocab: int, n_texts: int) -> int:
    """Memory of the corrections of so many texts at once."""
    return BYTES_PER_TOKEN * n_vocab + n_texts * TEXT_BYTES


class CorrectionLog:
    """Corrections of the texts at work, which are kept when their text ends."""

    def __init__(self, keep: Callable[[TrainingText], None]) -> None:
        """`keep` may raise OSError: the text's result says then that it was not kept."""
        self._keep = keep
        self._corrections: dict[int, list[Correction]] = {}

    def see_round(
        self,
        request: ActiveRequest,
        tree: TokenTree,
        nodes: Sequence[int],
        logits: np.ndarray,
        accepted: Accepted,
    ) -> None:
        """Record what the target said at the end of the accepted path, unless a guess was right.

        `logits` are the target's after each of the verified `nodes`; the request has the accepted
        tokens. Neither is kept beyond the call."""
        end, rows = accepted.path[-1], {node: row for row, node in enumerate(nodes)}
        guesses = [int(tree.token[child]) for child in tree.children(end) if child in rows]
        if accepted.tokens[-1] in guesses:
            return
        corrections = self._corrections.setdefault(id(request), [])
        if len(corrections) < MAX_CORRECTIONS:
            row = logits[rows[end]]
            said = top_tokens(row, N_SAID)
            weights = np.exp(row - row.max())
            shares = (weights[said] / weights.sum()).tolist()
            place = len(request.prompt) + len(request.transcript.tokens) - 1
            corrections.append(Correction(place, tuple(said.tolist()), tuple(shares)))

    def see_end(self, request: ActiveRequest) -> None:
        """Keep the text, however it ended."""
        corrections = self._corrections.pop(id(request), [])
        tokens = [*request.prompt, *request.transcript.tokens]
        cut = max(0, len(tokens) - MAX_TOKENS)
        n_prompt = max(1, len(request.prompt) - cut)
        if not request.transcript.tokens:
            return
        shifted = [replace(one, place=one.place - cut) for one in corrections]
        kept = [one for one in shifted if one.place >= n_prompt]
        try:
            self._keep(TrainingText(tokens[cut:], n_prompt, kept))
        except OSError as error:
            request.tally.note(f"the text was not kept to learn from: {error.strerror}")
