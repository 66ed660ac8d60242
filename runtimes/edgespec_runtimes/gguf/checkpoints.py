"""Recurrent states of a text where its prompts ended: a further turn reads only what is new.

A recurrent state cannot drop tokens, and the next prompt seldom continues the text to its end:
templates leave out what a model thought, and answers are cut or written again. Keys and values of
attention need no copy, since those of the text's beginning stay in their cells.
"""

from __future__ import annotations

import itertools
from typing import Any

from edgespec_runtimes.gguf.llama.cells import LlamaMemory

N_CHECKPOINTS = 4
"""States that are kept: a prompt may leave out what was thought in the calls of several tools."""


class Checkpoints:
    """States of the text in the sequence `home`, in buffers of up to `state_bytes` each."""

    def __init__(self, memory: LlamaMemory, home: int, state_bytes: int) -> None:
        self._memory = memory
        self._home = home
        self._state_bytes = state_bytes
        self._saved: dict[int, Any] = {}
        """State after each number of tokens, ascending."""

    def take(self, n_tokens: int) -> None:
        """Keep the state after the text's `n_tokens`. One too many takes the place of the state
        without which the fewest tokens would have to be read again."""
        planned = self._memory.recurrent_bytes(self._home) <= self._state_bytes
        if not planned or n_tokens in self._saved:
            return
        if len(self._saved) == N_CHECKPOINTS:
            ends = [0, *self._saved]
            distance = {end: end - before for before, end in itertools.pairwise(ends)}
            del self._saved[min(distance, key=distance.__getitem__)]
        self._saved[n_tokens] = self._memory.save_recurrent(self._home)

    def go_back(self, most: int) -> int:
        """Restore the latest state of `most` tokens or fewer; later ones are dropped. Returns its
        number of tokens, 0 if there is none: nothing is restored then."""
        self._saved = {end: saved for end, saved in self._saved.items() if end <= most}
        n_tokens = max(self._saved, default=0)
        if n_tokens:
            self._memory.restore_recurrent(self._saved[n_tokens], self._home)
        return n_tokens

    def clear(self) -> None:
        """The cells were cleared: no state has its keys and values any more."""
        self._saved.clear()
