"""Lines of a tree, for models whose state cannot drop tokens: a sequence with a state each.

llama.cpp computes sequences of one length in one pass over the weights, others in several: shorter
lines are padded. The first line is decoded in the text's own sequence, whose state is rolled back
to what was accepted of it, the others in copies. What was accepted of another line is computed once
more, before the next root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgespec.errors import UsageError
from edgespec.tree import TokenTree
from edgespec_runtimes.gguf.llama.cells import LlamaMemory
from edgespec_runtimes.gguf.llama.sequences import Branches, likely_first


class LineRows(NamedTuple):
    """The rows of a pass, and the first one of each node."""

    tokens: list[int]
    positions: list[int]
    sequences: list[list[int]]
    row_of: dict[int, int]


class Lines:
    """The text of a recurrent model: the state of `text`'s sequence, and what it lags behind."""

    def __init__(self, memory: LlamaMemory, text: Branches) -> None:
        self.lag: list[int] = []
        """Committed tokens that the state has not taken in."""
        self._memory = memory
        self._text = text
        self._first: list[int] = []
        """Keys of the first line of the latest pass."""
        self._n_before = 0
        """Tokens before its root that the pass took in."""
        self._n_lines = 1

    @property
    def n_committed(self) -> int:
        return self._text.n_committed + len(self.lag)

    @property
    def has_provisional(self) -> bool:
        return bool(self._first)

    def rows(self, tree: TokenTree, nodes: Sequence[int], reads: Sequence[int]) -> LineRows:
        """The rows of a pass over `nodes` after the committed tokens and `reads`."""
        parents = {int(tree.parent[node]) for node in nodes}
        lines = [tree.path(node) for node in likely_first(tree, nodes) if node not in parents]
        before = [*self.lag, *map(int, reads)]
        longest = max(map(len, lines), default=0)
        begin = self._text.n_committed
        found = LineRows([], [], [], {})
        for sequence, line in enumerate(lines or [[]]):
            for place, node in enumerate(line):
                found.row_of.setdefault(node, len(found.tokens) + len(before) + place)
            tokens = [*before, *(int(tree.token[node]) for node in line)]
            tokens += tokens[-1:] * (longest - len(line))
            found.tokens.extend(tokens)
            found.positions.extend(range(begin, begin + len(tokens)))
            found.sequences.extend([[sequence]] * len(tokens))
        self._first = [int(tree.key[node]) for node in lines[0]] if lines else []
        self._n_before, self._n_lines = len(before), max(1, len(lines))
        return found

    def copy_state(self) -> None:
        """Give each further line of the pass a copy of the text's state."""
        if self._n_lines > 1:
            home = self._text.home
            # a state that was rolled back is copied as it was before: written back, it is the last
            self._memory.restore_recurrent(self._memory.save_recurrent(home), home)
            for sequence in range(1, self._n_lines):
                self._memory.copy(home, sequence, 0, -1)

    def take_in(self) -> None:
        """The pass succeeded: what it read before its root is part of the state."""
        self._text.extend(self._n_before)
        self.lag = []
        self._n_before = 0

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Drop all but `path`, which begins at the root."""
        keys = [int(tree.key[node]) for node in path]
        if keys[0] != self._first[0]:
            raise UsageError("a path is committed that was not evaluated")
        pairs = zip(keys, self._first, strict=False)
        n_same = next((n for n, (one, other) in enumerate(pairs) if one != other), len(keys))
        n_same = min(n_same, len(self._first))
        self.drop_copies()
        self._text.extend(n_same)
        self._memory.remove(self._text.home, self._text.n_committed, -1)
        self.lag = [int(tree.token[node]) for node in path[n_same:]]
        self._first = []

    def drop_copies(self) -> None:
        for sequence in range(1, self._n_lines):
            self._memory.remove(sequence, -1, -1)
        self._n_lines = 1

    def forget(self) -> None:
        """Nothing provisional is left, and nothing that the state lags behind."""
        self.lag, self._first, self._n_before, self._n_lines = [], [], 0, 1
