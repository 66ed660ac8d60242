"""A fake of `LanguageModel` with known probabilities that checks every rule of the port.

Its KV cache is a table of tokens that it fills itself, so a cell that was never evaluated, dropped
too early or kept too long gives an AssertionError or wrong logits, never a right answer by luck.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.errors import Cancelled, UsageError
from edgespec.ports import Progress, Vocabulary, check_token
from edgespec.ports.state import Read, StateOrigin, Write
from edgespec.tree import ROOT, TokenTree
from edgespec.values import ModelInfo, PagingStats, PassReport

Language = Callable[[tuple[int, ...]], np.ndarray]
"""Function from a context to the logits after it, float32 [n_vocab]."""

PATIENCE_S = 5.0
"""Longest wait of a test for another thread."""


def random_language(seed: int, n_vocab: int, sharpness: float = 3.0, order: int = 2) -> Language:
    """Random logits that depend on the last `order` tokens."""
    cache: dict[tuple[int, ...], np.ndarray] = {}

    def logits(context: tuple[int, ...]) -> np.ndarray:
        last = context[-order:]
        if last not in cache:
            random = np.random.default_rng([seed, *last])
            cache[last] = (sharpness * random.standard_normal(n_vocab)).astype(np.float32)
        return cache[last]

    return logits


def blend(one: Language, other: Language, share: float) -> Language:
    """A language whose logits are a mean of both, with weight `share` for `other`."""
    return lambda context: (1 - share) * one(context) + np.float32(share) * other(context)


def fixed_text(tokens: Sequence[int], n_vocab: int, prompt_length: int) -> Language:
    """A language that continues a prompt with `tokens`, repeated, with high probability."""

    def logits(context: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(n_vocab, np.float32)
        row[tokens[(len(context) - prompt_length) % len(tokens)]] = 10.0
        return row

    return logits


class FakeVocabulary:
    """A vocabulary in which token i is the i-th piece; by default pieces are single letters."""

    def __init__(
        self, n_vocab: int, eog_tokens: Iterable[int] = (), pieces: Sequence[bytes] = ()
    ) -> None:
        self.n_vocab = n_vocab
        self.eog_tokens = frozenset(eog_tokens)
        self._pieces = pieces or [bytes([ord("a") + token % 26]) for token in range(n_vocab)]
        self.longest_piece_bytes = max(map(len, self._pieces))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [byte % self.n_vocab for byte in text.encode()]

    def piece(self, token: int) -> bytes:
        check_token(token, self.n_vocab)
        return self._pieces[token]


@dataclass
class Cell:
    """Keys and values of one provisional node."""

    token: int
    depth: int
    parent: Cell | None


class FakeModel:
    """A language model in memory. `hook` runs inside every `prefill` and `evaluate` and may wait or
    raise; `cost` makes the report of a call from its number of tokens."""

    def __init__(
        self,
        language: Language,
        n_vocab: int,
        *,
        n_ctx: int = 512,
        eog_tokens: Iterable[int] = (),
        pieces: Sequence[bytes] = (),
        max_nodes: int = 64,
        max_branches: int = 32,
        tree_capable: bool = True,
        max_rollback: int = 0,
        stall_share: float = 0.0,
        hook: Callable[[FakeModel], None] | None = None,
        cost: Callable[[int], PassReport] | None = None,
    ) -> None:
        self.language = language
        self.info = ModelInfo(
            name="fake",
            architecture="table",
            n_vocab=n_vocab,
            n_ctx=n_ctx,
            n_layers=1,
            size_bytes=0,
            tree_capable=tree_capable,
            max_rollback=max_rollback,
            max_nodes=max_nodes,
            max_branches=max_branches,
        )
        self.vocabulary: Vocabulary = FakeVocabulary(n_vocab, eog_tokens, pieces)
        self.last_report = PassReport()
        self.hook = hook
        self.evaluations: list[int] = []
        """Number of nodes of every `evaluate` that succeeded."""
        self.prefilled: list[int] = []
        """Number of tokens of every `prefill` that succeeded."""
        self._stall_share = stall_share
        self._cost = cost
        self._committed: list[int] = []
        self._cells: dict[int, Cell] = {}
        self._is_running = False
        self._is_cancelled = threading.Event()
        self._is_closed = False

    @property
    def n_committed(self) -> int:
        return len(self._committed)

    @property
    def committed(self) -> tuple[int, ...]:
        return tuple(self._committed)

    @property
    def n_provisional(self) -> int:
        return len(self._cells)

    def prefill(self, tokens: Sequence[int], progress: Progress | None = None) -> None:
        assert not self._cells, "prefill with provisional nodes around"
        if self.n_committed + len(tokens) > self.info.n_ctx:
            raise UsageError("past the end of the context")
        self._begin()
        try:
            self._run_hook()
        finally:
            self._is_running = False
        self._committed += tokens
        self.prefilled.append(len(tokens))
        self.last_report = self._report(len(tokens))
        if progress is not None:
            progress("prompt", 1.0)

    def evaluate(self, tree: TokenTree, nodes: Sequence[int]) -> np.ndarray:
        self._begin()
        try:
            self._check_batch(tree, nodes)
            self._run_hook()
            for node in nodes:
                self._fill(tree, node)
            rows = [self.language(self._context(int(tree.key[node]))) for node in nodes]
        except BaseException:
            self._cells.clear()
            raise
        finally:
            self._is_running = False
        self.evaluations.append(len(nodes))
        self.last_report = self._report(len(nodes))
        return np.stack(rows).astype(np.float32)

    def commit(self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        assert not self._is_running, "commit while another call runs"
        assert path[0] == ROOT, f"a path starts at the root, not at {path[0]}"
        for parent, node in itertools.pairwise(path):
            assert tree.parent[node] == parent, f"path {list(path)} is not contiguous"
        below_end = set(tree.subtree(path[-1])) - {path[-1]}
        for node in (*path, *keep):
            assert int(tree.key[node]) in self._cells, f"node {node} was never evaluated"
        assert set(keep) <= below_end, f"{list(keep)} do not all hang below the path's end"
        kept = {int(tree.key[node]): self._cells[int(tree.key[node])] for node in keep}
        end = self._cells[int(tree.key[path[-1]])]
        self._committed += (self._cells[int(tree.key[node])].token for node in path)
        for cell in kept.values():
            cell.depth -= len(path)
            if cell.parent is end:
                cell.parent = None
            assert cell.parent is None or any(cell.parent is other for other in kept.values())
        self._cells = kept

    def truncate(self, n_tokens: int) -> None:
        assert not self._is_running, "truncate while another call runs"
        assert 0 <= n_tokens <= self.n_committed, f"truncate({n_tokens}) of {self.n_committed}"
        assert self.info.tree_capable or n_tokens in (0, self.n_committed), "recurrent state"
        self._cells.clear()
        del self._committed[n_tokens:]

    @property
    def state_origin(self) -> StateOrigin:
        return StateOrigin((), {"--ctx-size": str(self.info.n_ctx)})

    @property
    def state_bytes(self) -> int:
        return 0

    def write_state(self, write: Write) -> None:
        assert not self._cells, "state with provisional nodes around"
        for token in self._committed:  # a piece each
            write(memoryview(token.to_bytes(4, "little")))

    def read_state(self, n_tokens: int, read: Read) -> None:
        assert not self._cells, "state with provisional nodes around"
        self._committed = []
        tokens = []
        for _ in range(n_tokens):
            piece = bytearray(read.size())
            read(memoryview(piece))
            tokens.append(int.from_bytes(piece, "little"))
        self._committed = tokens

    def paging(self) -> PagingStats:
        return PagingStats()

    def cancel(self) -> None:
        if self._is_running:
            self._is_cancelled.set()

    def close(self) -> None:
        self._is_closed = True

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait until `happened()` is true or the call is cancelled; for hooks."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened() and not self._is_cancelled.is_set():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.0002)

    def _begin(self) -> None:
        assert not self._is_closed, "used after close"
        assert not self._is_running, "two calls at once"
        self._is_cancelled.clear()
        self._is_running = True

    def _run_hook(self) -> None:
        if self.hook is not None:
            self.hook(self)
        if self._is_cancelled.is_set():
            raise Cancelled("the fake was cancelled")

    def _check_batch(self, tree: TokenTree, nodes: Sequence[int]) -> None:
        info = self.info
        assert nodes, "an empty batch"
        assert len(nodes) <= info.max_nodes, f"{len(nodes)} nodes in one batch"
        assert info.tree_capable or len(nodes) <= 1 + info.max_rollback, "too long to drop again"
        keys = {int(key): node for node, key in enumerate(tree.key[: len(tree)])}
        stale = self._cells.keys() - keys.keys()
        assert not stale, f"provisional nodes of no tree: {stale}"
        together = [*(keys[key] for key in self._cells), *nodes]
        n_branches = tree.branch_count(together)
        assert n_branches <= info.max_branches, "too many branches"
        assert info.tree_capable or n_branches == 1, "a tree for a recurrent model"
        assert self.n_committed + len(together) <= info.n_ctx, "more cells than the context has"

    def _fill(self, tree: TokenTree, node: int) -> None:
        key, parent = int(tree.key[node]), int(tree.parent[node])
        assert key not in self._cells, f"node {node} was evaluated before"
        assert self.n_committed + tree.depth[node] < self.info.n_ctx, "past the end of the context"
        above = None
        if parent >= 0:
            above = self._cells.get(int(tree.key[parent]))
            assert above is not None, f"node {node} was evaluated before its parent {parent}"
        cell = Cell(int(tree.token[node]), int(tree.depth[node]), above)
        assert cell.depth == (0 if above is None else above.depth + 1), "a gap in the positions"
        self._cells[key] = cell

    def _context(self, key: int) -> tuple[int, ...]:
        branch = []
        cell: Cell | None = self._cells[key]
        while cell is not None:
            branch.append(cell.token)
            cell = cell.parent
        return (*self._committed, *reversed(branch))

    def _report(self, n_tokens: int) -> PassReport:
        if self._cost is not None:
            return self._cost(n_tokens)
        report = PassReport(wall_s=1.0, n_tokens=n_tokens)
        return replace(report, stall_s=self._stall_share * report.wall_s)
