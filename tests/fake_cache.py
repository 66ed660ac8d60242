"""The KV cache of a fake model: a table of tokens, which checks how it is used.

It knows neither logits nor passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgespec.pool import Pool
from edgespec.ports import PassPart


@dataclass
class Cell:
    """Keys and values of one provisional node."""

    token: int
    depth: int
    parent: Cell | None


@dataclass
class FakeText:
    """One text in the cache: its committed tokens and its provisional cells."""

    committed: list[int] = field(default_factory=list)
    cells: dict[int, Cell] = field(default_factory=dict)
    """Provisional nodes by their keys."""
    ends: list[int] = field(default_factory=list)
    """Lengths after its prompts, to which a recurrent model can go back."""
    expected_end: int = 0
    """A further one, within the next prompt."""

    def context(self, key: int) -> tuple[int, ...]:
        """The tokens down to a provisional node."""
        branch = []
        cell: Cell | None = self.cells[key]
        while cell is not None:
            branch.append(cell.token)
            cell = cell.parent
        return (*self.committed, *reversed(branch))

    def read(self, tokens: Sequence[int]) -> None:
        """Take in the tokens of a prompt, which ends with them."""
        begin, end = len(self.committed), len(self.committed) + len(tokens)
        if begin < self.expected_end < end:
            self.ends.append(self.expected_end)
        self.expected_end = 0
        self.committed += tokens
        self.ends.append(end)

    def fill(self, tree: Pool, node: int, n_ctx: int) -> None:
        """Add the cell of a node whose parent has one."""
        key, parent = int(tree.key[node]), int(tree.parent[node])
        assert key not in self.cells, f"node {node} was evaluated before"
        assert len(self.committed) + tree.depth[node] < n_ctx, "past the context's end"
        above = None
        if parent >= 0:
            above = self.cells.get(int(tree.key[parent]))
            assert above is not None, f"node {node} was evaluated before its parent {parent}"
        cell = Cell(int(tree.token[node]), int(tree.depth[node]), above)
        assert cell.depth == (0 if above is None else above.depth + 1), "a gap in the positions"
        self.cells[key] = cell

    def n_branches(self, part: PassPart, n_ctx: int) -> int:
        """Number of branches with the nodes of `part`."""
        tree = part.pool
        assert not (part.reads and self.cells), "a prompt with provisional nodes around"
        keys = {int(tree.key[node]): int(node) for node in tree.alive()}
        stale = self.cells.keys() - keys.keys()
        assert not stale, f"provisional nodes of no tree: {stale}"
        together = [*(keys[key] for key in self.cells), *part.nodes]
        n_committed = len(self.committed) + len(part.reads)
        assert n_committed + len(together) <= n_ctx, "more cells than the context"
        return len(tree.leaves(together))

    def commit(self, tree: Pool, path: Sequence[int], keep: Sequence[int]) -> None:
        """Commit the nodes of a path; of the others, only those to `keep` stay."""
        cells = self.cells
        assert tree.parent[path[0]] < 0, f"a path starts at the root, not at {path[0]}"
        for parent, node in itertools.pairwise(path):
            assert tree.parent[node] == parent, f"path {list(path)} is not contiguous"
        below_end = set(tree.subtree(path[-1])) - {path[-1]}
        for node in (*path, *keep):
            assert int(tree.key[node]) in cells, f"node {node} was never evaluated"
        assert set(keep) <= below_end, f"{list(keep)} do not all hang below the path's end"
        kept = {int(tree.key[node]): cells[int(tree.key[node])] for node in keep}
        end = cells[int(tree.key[path[-1]])]
        self.committed += (cells[int(tree.key[node])].token for node in path)
        for cell in kept.values():
            cell.depth -= len(path)
            if cell.parent is end:
                cell.parent = None
            assert cell.parent is None or any(cell.parent is other for other in kept.values())
        self.cells = kept

    def truncate(self, n_tokens: int, exactly: bool) -> None:
        """Keep the first tokens; if not `exactly`, those up to an end before them."""
        n_committed = len(self.committed)
        assert 0 <= n_tokens <= n_committed, f"truncate({n_tokens}) of {n_committed}"
        if not exactly and n_tokens < n_committed:
            self.ends = [end for end in self.ends if end <= n_tokens]
            n_tokens = max(self.ends, default=0)
        self.cells.clear()
        del self.committed[n_tokens:]
