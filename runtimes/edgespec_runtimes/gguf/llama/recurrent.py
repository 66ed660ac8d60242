"""The text of a recurrent model, whose state cannot drop tokens: lines of a tree, and states where
its prompts ended.

A sequence with a state each computes a line. llama.cpp computes sequences of one length in one pass
over the weights, others in several: shorter lines are padded. Where a state can be rolled back, the
first line is decoded in the text's own sequence, the others in copies. What was accepted of another
line is computed once more, before the next root. Where none can, all lines are decoded in copies,
and the text's own state lags behind until a whole line is accepted or nothing is guessed.

The next prompt seldom continues the text to its end: templates leave out what a model thought, and
answers are cut or written again. Keys and values of attention need no copy, since those of the
text's beginning stay in their cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import UsageError
from edgespec.tree import TokenTree
from edgespec_runtimes.gguf.llama.cells import LlamaMemory
from edgespec_runtimes.gguf.llama.rows import Rows
from edgespec_runtimes.gguf.llama.sequences import HOME, Texts, likely_first
from edgespec_runtimes.gguf.llama.windows import least_useful

MAX_LAG = 16
"""Tokens that every line of a pass may compute again; more are read before it, in a pass of their
own."""
N_CHECKPOINTS = 4
"""States that are kept: a prompt may leave out what was thought in the calls of several tools."""


@dataclass(slots=True)
class LineRows(Rows):
    """The rows of a pass over lines."""

    row_of: dict[int, int] = field(default_factory=dict)
    """First row of each node."""


class RecurrentText:
    """The only text of a model, in the sequence HOME, and what its state lags behind."""

    def __init__(
        self, memory: LlamaMemory, texts: Texts, state_bytes: int, rolls_back: bool
    ) -> None:
        """`state_bytes`: room for each state that is kept where a prompt ended. `rolls_back`: False
        where guesses can only be dropped with the copy of the state that has seen them."""
        self.lag: list[int] = []
        """Committed tokens that the state has not taken in."""
        self._memory = memory
        self._texts = texts
        self._text = texts.all[HOME]
        self._state_bytes = state_bytes
        self._rolls_back = rolls_back
        self._checkpoints: dict[int, Any] = {}
        """State after each number of tokens where a prompt ended, ascending."""
        self._first: list[int] = []
        """Keys of the first line of the latest pass."""
        self._before: list[int] = []
        """Tokens before the root of the latest pass."""
        self._longest = 0
        """Nodes of each of its lines, padding included."""
        self._copies = range(1, 1)
        """Sequences of its lines beside the text's own."""

    def rows(self, tree: TokenTree, nodes: Sequence[int], reads: Sequence[int]) -> LineRows:
        """The rows of a pass over `nodes` after the committed tokens and `reads`."""
        parents = {int(tree.parent[node]) for node in nodes}
        lines = [tree.path(node) for node in likely_first(tree, nodes) if node not in parents]
        before = [*self.lag, *map(int, reads)]
        longest = max(map(len, lines), default=0)
        begin = self._text.n_committed
        first = HOME if self._rolls_back or len(nodes) < 2 else HOME + 1
        found = LineRows()
        for sequence, line in enumerate(lines or [[]], first):
            for place, node in enumerate(line):
                found.row_of.setdefault(node, len(found) + len(before) + place)
            tokens = [*before, *(int(tree.token[node]) for node in line)]
            tokens += tokens[-1:] * (longest - len(line))
            positions = range(begin, begin + len(tokens))
            found.extend(tokens, positions, [[sequence]] * len(tokens))
        self._first = [int(tree.key[node]) for node in lines[0]] if lines else []
        self._before, self._longest = before, longest
        self._copies = range(HOME + 1, first + max(1, len(lines)))
        return found

    def must_catch_up(self, rows: LineRows) -> bool:
        """True if the text's own state is to take in what it lags behind before a pass over these
        rows, which would be too many."""
        if self._rolls_back or not self._copies or not self.lag:
            return False
        n_free = self._texts.layout.n_cells - self._text.n_committed
        return len(self._before) > MAX_LAG or len(rows) > n_free

    def lag_rows(self) -> Rows:
        """The rows of a pass that takes in what the text's own state lags behind."""
        begin, n_rows = self._text.n_committed, len(self.lag)
        return Rows([*self.lag], [*range(begin, begin + n_rows)], [[HOME]] * n_rows)

    def copy_state(self) -> None:
        """Give each line of the pass but the text's own a copy of the text's state."""
        if self._copies and self._rolls_back:
            # a state that was rolled back is copied as it was before: written back, it is the last
            self._memory.restore_recurrent(self._memory.save_recurrent(HOME), HOME)
        for sequence in self._copies:
            self._memory.copy(HOME, sequence, 0, -1)

    def take_in(self) -> None:
        """The pass succeeded: what it read before its root is part of the text, and of its state
        unless that of a copy was computed."""
        self.lag = self._before
        if self._rolls_back or not self._copies:
            self.take_in_lag()

    def take_in_lag(self) -> None:
        """The text's own state holds what it lagged behind."""
        self._text.extend(len(self.lag))
        self.lag = []

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Drop all but `path`, which begins at the root."""
        keys = [int(tree.key[node]) for node in path]
        if keys[0] != self._first[0]:
            raise UsageError("a path is committed that was not evaluated")
        tokens = [int(tree.token[node]) for node in path]
        if self._rolls_back or not self._copies:
            pairs = zip(keys, self._first, strict=False)
            n_same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(keys))
            n_same = min(n_same, len(self._first))
            self._drop_copies()
            self._text.extend(n_same)
            self._memory.remove(HOME, self._text.n_committed, -1)
            self.lag = tokens[n_same:]
        else:
            self.lag = self.lag + tokens
            if keys == self._first and len(keys) == self._longest:
                self._memory.copy(self._copies[0], HOME, 0, -1)
                self.take_in_lag()
            self._drop_copies()
        self._first = []

    def end_prompt(self) -> None:
        """Keep the state where a prompt ended, which has taken in all tokens. One too many takes
        the place of the state without which the fewest tokens would have to be read again."""
        self.lag = []
        n_tokens, kept = self._text.n_committed, self._checkpoints
        if n_tokens in kept or self._memory.recurrent_bytes(HOME) > self._state_bytes:
            return
        if len(kept) == N_CHECKPOINTS:
            del kept[least_useful(kept)]
        kept[n_tokens] = self._memory.save_recurrent(HOME)

    def truncate(self, n_tokens: int) -> None:
        """Shorten the text to where a prompt ended, at `n_tokens` or before; drop guesses."""
        if n_tokens < self._text.n_committed + len(self.lag) or self._first:
            self.go_back(n_tokens)

    def go_back(self, most: int) -> None:
        """Restore the latest kept state of `most` tokens or fewer; later ones are dropped. Without
        one the text is empty."""
        self._drop_copies()
        self._reset()
        self._checkpoints = {end: kept for end, kept in self._checkpoints.items() if end <= most}
        if n_tokens := max(self._checkpoints, default=0):
            self._memory.restore_recurrent(self._checkpoints[n_tokens], HOME)
            self._texts.truncate({HOME: n_tokens})
        else:
            self._memory.clear()
            self._texts.clear()

    def forget(self) -> None:
        """The cells were cleared: no kept state has its keys and values any more."""
        self._checkpoints.clear()
        self._reset()

    def _reset(self) -> None:
        self.lag, self._first = [], []

    def _drop_copies(self) -> None:
        for sequence in self._copies:
            self._memory.remove(sequence, -1, -1)
        self._copies = range(1, 1)
