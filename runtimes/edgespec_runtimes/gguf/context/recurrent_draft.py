"""The text of a recurrent draft, whose guesses grow line by line, a row a step.

A line that was computed stays in its sequence, with the state after its last node: the next step
decodes only what follows. Where lines part, the state is copied, so the root's is never extended in
place: it is the one from which the text goes on after the next round. Other accepted tokens are
computed again with the next root.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.errors import UsageError
from edgespec.pool import Pool
from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.recurrent import MAX_LAG, LineRows, RecurrentText
from edgespec_runtimes.gguf.context.sequences import HOME, likely_first


class RecurrentDraft(RecurrentText):
    """The only text of a draft with a recurrent state. It keeps no checkpoints."""

    def __init__(self, texts: Texts, n_sequences: int, most_rows: int) -> None:
        """`n_sequences` with that of the text; a pass has at most `most_rows`."""
        super().__init__(texts, state_bytes=0, rolls_back=False)
        self._sequences = range(HOME + 1, n_sequences)
        self._most_rows = most_rows
        self._chains: dict[int, list[int]] = {}
        """Keys of the nodes that a sequence holds, from the root on."""
        self._planned: dict[int, tuple[int, list[int]]] = {}
        """Sequences of the next pass: those that they continue, and their keys after it."""

    def rows(self, pool: Pool, nodes: Sequence[int], reads: Sequence[int] = ()) -> LineRows:
        """The rows of a pass over `nodes`, and over their ancestors that no sequence holds."""
        parents, wanted = {int(pool.parent[node]) for node in nodes}, set(nodes)
        lines = [pool.path(node) for node in likely_first(pool, nodes) if node not in parents]
        begin, found = self._text.n_committed, LineRows()
        self._planned = {}
        for line in lines:
            keys = [int(pool.key[node]) for node in line]
            n_known = next(n for n, node in enumerate(line) if node in wanted)
            source = self._holder(keys[:n_known])
            held = len(self._chains.get(source, ()))
            before = self.lag if source == HOME else []
            sequence = self._free(source, held)
            if sequence != source:
                self._chains.pop(sequence, None)
            self._planned[sequence] = source, keys
            for n, node in enumerate(line[held:]):
                if node in wanted:
                    found.row_of.setdefault(node, len(found) + len(before) + n)
            tokens = [*before, *(int(pool.token[node]) for node in line[held:])]
            first = begin if source == HOME else begin + len(self.lag) + held
            found.add(tokens, range(first, first + len(tokens)), sequence)
        if len(found) > self._most_rows:
            raise UsageError(f"a pass takes up to {self._most_rows} rows, not {len(found)}")
        return found

    def must_catch_up(self, rows: LineRows) -> bool:
        return len(self.lag) > MAX_LAG

    def copy_state(self) -> None:
        """Copy the states from which lines part, before any of them goes on."""
        for sequence, (source, _) in self._planned.items():
            if sequence != source:
                self._memory.remove(sequence, -1, -1)
                self._memory.copy(source, sequence, 0, -1)

    def take_in(self) -> None:
        """Keep the lines of a successful pass."""
        self._chains |= {sequence: keys for sequence, (_, keys) in self._planned.items()}

    def commit(self, pool: Pool, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        keys, kept = [int(pool.key[n]) for n in path], {int(pool.key[n]) for n in keep}
        tokens = [int(pool.token[node]) for node in path]
        source = self._holder(keys)
        if source == HOME:
            self.lag = self.lag + tokens
        else:
            n_held = len(self._chains[source])
            self._memory.copy(source, HOME, 0, -1)
            self._text.extend(len(self.lag) + n_held)
            self.lag = tokens[n_held:]
        for sequence, chain in [*self._chains.items()]:
            below = chain[len(keys) :] if chain[: len(keys)] == keys else []
            if below and below[0] in kept:
                self._chains[sequence] = below
            else:
                self._drop(sequence)

    def parts(self, tokens: Sequence[int], begin: int) -> list[Sequence[int]]:
        self._drop_copies()
        return super().parts(tokens, begin)

    def truncate(self, n_tokens: int) -> None:
        n_in_state = self._text.n_committed
        if n_tokens < n_in_state:
            self.go_back(n_tokens)
        else:
            self._drop_copies()
            self.lag = self.lag[: n_tokens - n_in_state]

    def _holder(self, keys: Sequence[int]) -> int:
        """The sequence that holds most of the first nodes of a line, and nothing else."""
        fitting = [s for s, chain in self._chains.items() if chain == keys[: len(chain)]]
        return max(fitting, key=lambda sequence: len(self._chains[sequence]), default=HOME)

    def _free(self, source: int, held: int) -> int:
        """A sequence for a line after the `held` nodes of another one: that one itself, unless it
        ends with the root or another line goes on from it."""
        if held > 1 and source not in self._planned:
            return source
        taken = {*self._planned, *(other for other, _ in self._planned.values()), source}
        free = [sequence for sequence in self._sequences if sequence not in taken]
        if not free:
            raise UsageError(f"the tree has more than {len(self._planned)} branches")
        # one without nodes, else the one that holds least but for the root
        return min(free, key=lambda s: (len(self._chains.get(s, ())) == 1, s in self._chains))

    def _drop(self, sequence: int) -> None:
        del self._chains[sequence]
        self._memory.remove(sequence, -1, -1)

    def _drop_copies(self) -> None:
        self._chains.clear()
        for sequence in self._sequences:
            self._memory.remove(sequence, -1, -1)
