"""The text of a recurrent model: verifies trees as lines, and keeps checkpoints at prompt ends.

A recurrent state cannot drop tokens, so each line of a tree is computed in a sequence with a state
of its own. llama.cpp computes sequences of equal length in one pass over the weights, so shorter
lines are padded. If the state can be rolled back, the first line is decoded in the text's own
sequence and the others in copies; the accepted part of another line is computed again before the
next root. If it cannot, all lines are decoded in copies, and the text's own state lags behind until
a whole line is accepted or nothing is guessed.

The next prompt rarely continues the whole text: templates omit reasoning, and answers are cut or
regenerated. Checkpoints are copies of the recurrent state; keys and values of attention need no
copy, because those of the common prefix stay in their cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import UsageError
from edgespec.pool import Pool
from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.rows import Rows
from edgespec_runtimes.gguf.context.sequences import HOME, likely_first
from edgespec_runtimes.gguf.context.windows import least_useful

MAX_LAG = 16
"""Most tokens that every line of a pass computes again; more are read in a pass of their own."""
N_CHECKPOINTS = 4
"""Number of checkpoints: a prompt may omit the reasoning of several tool calls."""


@dataclass(slots=True)
class LineRows(Rows):
    """The rows of a pass over lines."""

    row_of: dict[int, int] = field(default_factory=dict)
    """First row of each node."""

    def add(self, tokens: Sequence[int], positions: Sequence[int], sequence: int) -> None:
        self.tokens += tokens
        self.positions += positions
        self.sequences += [[sequence]] * len(tokens)


class RecurrentText:
    """The only text of a recurrent model, in the sequence HOME, with its checkpoints."""

    def __init__(self, texts: Texts, state_bytes: int, rolls_back: bool) -> None:
        """`state_bytes` is the size of a checkpoint. Without `rolls_back`, guesses can only be
        dropped together with a copy of the state."""
        self.lag: list[int] = []
        """Committed tokens that the state does not include yet."""
        self._memory = texts.memory
        self._texts = texts
        self._text = texts.all[HOME]
        self.state_bytes = state_bytes
        self._rolls_back = rolls_back
        self.expected_end = 0
        """Number of tokens after which the next prompt gets a further checkpoint."""
        self.checkpoints: dict[int, Any] = {}
        """Checkpoints by number of tokens, ascending."""
        self._batch_end = 0
        """The checkpoint after the latest batch of the prompt that is read."""
        self._first: list[int] = []
        """Node keys of the first line of the latest pass."""
        self._before: list[int] = []
        """Tokens before the root in the latest pass."""
        self._longest = 0
        """Nodes of each line of the latest pass, including padding."""
        self._copies = range(1, 1)
        """Sequences of further lines of the latest pass."""

    def rows(self, pool: Pool, nodes: Sequence[int], reads: Sequence[int]) -> LineRows:
        """The rows of a pass over `nodes` after the committed tokens and `reads`."""
        parents = {int(pool.parent[node]) for node in nodes}
        lines = [pool.path(node) for node in likely_first(pool, nodes) if node not in parents]
        before = [*self.lag, *map(int, reads)]
        longest = max(map(len, lines), default=0)
        begin = self._text.n_committed
        first = HOME if self._rolls_back or len(nodes) < 2 else HOME + 1
        found = LineRows()
        for sequence, line in enumerate(lines or [[]], first):
            for place, node in enumerate(line):
                found.row_of.setdefault(node, len(found) + len(before) + place)
            tokens = [*before, *(int(pool.token[node]) for node in line)]
            tokens += tokens[-1:] * (longest - len(line))
            positions = range(begin, begin + len(tokens))
            found.add(tokens, positions, sequence)
        self._first = [int(pool.key[node]) for node in lines[0]] if lines else []
        self._before, self._longest = before, longest
        self._copies = range(HOME + 1, first + max(1, len(lines)))
        return found

    def must_catch_up(self, rows: LineRows) -> bool:
        """True if lagging tokens must be read before a pass over `rows`, which would be too
        many."""
        if self._rolls_back or not self._copies or not self.lag:
            return False
        n_free = self._texts.n_cells - self._text.n_committed
        return len(self._before) > MAX_LAG or len(rows) > n_free

    def lag_rows(self) -> Rows:
        """The rows of a pass over the lagging tokens."""
        begin, n_rows = self._text.n_committed, len(self.lag)
        return Rows([*self.lag], [*range(begin, begin + n_rows)], [[HOME]] * n_rows)

    def copy_state(self) -> None:
        """Copy the text's state to the sequences of the further lines."""
        if self._copies and self._rolls_back:
            # copying ignores a rollback; saving and restoring the state makes it the current one
            self._memory.restore_recurrent(self._memory.save_recurrent(HOME), HOME)
        for sequence in self._copies:
            self._memory.copy(HOME, sequence, 0, -1)

    def take_in(self) -> None:
        """Commit the tokens before the root after a successful pass.

        The state includes them, unless a copy was computed.
        """
        self.lag = self._before
        if self._rolls_back or not self._copies:
            self.take_in_lag()

    def take_in_lag(self) -> None:
        """Mark the lagging tokens as included in the state."""
        self._text.extend(len(self.lag))
        self.lag = []

    def commit(self, pool: Pool, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Drop all nodes except `path`, which begins at the root; a draft holds those in `keep`."""
        keys = [int(pool.key[node]) for node in path]
        if keys[0] != self._first[0]:
            raise UsageError("a path is committed that was not evaluated")
        tokens = [int(pool.token[node]) for node in path]
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

    def parts(self, tokens: Sequence[int], begin: int) -> list[Sequence[int]]:
        """The parts of a prompt's tokens from `begin` on, each of which ends in a checkpoint."""
        n_before, self.expected_end = self.expected_end - begin, 0
        if 0 < n_before < len(tokens):
            return [tokens[:n_before], tokens[n_before:]]
        return [tokens]

    def end_batch(self) -> None:
        """Store a checkpoint, for a prompt that is cancelled, in place of that after the batch
        before."""
        self.checkpoints.pop(self._batch_end, None)
        self.end_prompt()
        self._batch_end = self._text.n_committed

    def end_prompt(self) -> None:
        """Store a checkpoint at the end of a prompt, when the state includes all tokens.

        If there are too many, the one whose loss costs the fewest tokens is dropped.
        """
        self.lag, self._batch_end = [], 0
        n_tokens, kept = self._text.n_committed, self.checkpoints
        if n_tokens in kept or self._memory.recurrent_bytes(HOME) > self.state_bytes:
            return
        if len(kept) == N_CHECKPOINTS:
            del kept[least_useful(kept)]
        kept[n_tokens] = self._memory.save_recurrent(HOME)

    def adopt(self, n_tokens: int, checkpoint: Any) -> None:
        """Go on with a stored state after `n_tokens`, whose keys and values the text has.

        Raises StateError.
        """
        self._memory.adopt_recurrent(checkpoint, HOME, n_tokens)
        self._reset()
        self.checkpoints = {n_tokens: checkpoint}

    def truncate(self, n_tokens: int) -> None:
        """Restore the latest checkpoint at or before `n_tokens`; drop guesses."""
        if n_tokens < self._text.n_committed + len(self.lag) or self._first:
            self.go_back(n_tokens)

    def go_back(self, most: int) -> None:
        """Restore the latest checkpoint of at most `most` tokens and drop later ones.

        Without one, the text becomes empty.
        """
        self._drop_copies()
        self._reset()
        self.checkpoints = {end: kept for end, kept in self.checkpoints.items() if end <= most}
        if n_tokens := max(self.checkpoints, default=0):
            self._memory.restore_recurrent(self.checkpoints[n_tokens], HOME)
            self._texts.truncate({HOME: n_tokens})
        else:
            self._memory.clear()
            self._texts.clear()

    def _reset(self) -> None:
        self.lag, self._first, self._batch_end = [], [], 0

    def _drop_copies(self) -> None:
        for sequence in self._copies:
            self._memory.remove(sequence, -1, -1)
        self._copies = range(1, 1)
