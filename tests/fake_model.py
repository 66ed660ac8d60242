"""A fake of `LanguageModel` with known probabilities that checks every rule of the port.

Its KV cache is a table of tokens that it fills itself (`fake_cache.py`), so a cell that was never
evaluated, dropped too early or kept too long gives an AssertionError or wrong logits, never a right
answer by luck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgespec.errors import Cancelled, StateError, UsageError
from edgespec.ports import (
    LanguageModel,
    PassPart,
    Progress,
    StateOrigin,
    Take,
    Vocabulary,
    unknown_token,
)
from edgespec.values import ModelInfo, PassReport
from fake_cache import FakeText
from one_tree import OneTree

Language = Callable[[tuple[int, ...]], np.ndarray]
"""Function from a context to the logits after it, float32 [n_vocab]."""

FAKE_PIECE_TOKENS = 16
FAKE_BLOCK_TOKENS = 4
"""Tokens of a block of saved keys and values."""
PATIENCE_S = 60.0
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


def fake_features(context: Sequence[int]) -> np.ndarray:
    """Features of the last token of a context, which tell its tokens: float32 [2]."""
    folded = 0
    for token in context:
        folded = (folded * 31 + token + 1) % 65_521
    return np.array([len(context), folded], np.float32)


def n_line_rows(tree: OneTree, nodes: Sequence[int]) -> int:
    """Rows of a tree whose branches are computed as lines, all as long as the longest."""
    longest = max((1 + int(tree.depth[node]) for node in nodes), default=0)
    return len(tree.leaves(nodes)) * longest if nodes else 0


class FakeVocabulary(Vocabulary):
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
        if not 0 <= token < self.n_vocab:
            raise unknown_token(token, self.n_vocab)
        return self._pieces[token]


class FakeModel(LanguageModel):
    """A language model in memory, of one text or several. `hook` runs inside every `evaluate` and
    may wait or raise; `cost` makes the report of a call from its number of tokens."""

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
        n_texts: int = 1,
        n_cells: int = 0,
        tree_capable: bool = True,
        max_rollback: int = 0,
        gives_first: bool = False,
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
            n_slots=n_texts,
            n_cells=n_cells,
            prompts_share_passes=n_texts > 1,
            prompts_give_logits=gives_first,
            gives_features=True,
            block_tokens=FAKE_BLOCK_TOKENS if tree_capable else 0,
            needs_checkpoints=not tree_capable,
        )
        self.vocabulary: Vocabulary = FakeVocabulary(n_vocab, eog_tokens, pieces)
        self.state_origin = StateOrigin((), {"--ctx-size": str(n_ctx)})
        self.last_report = PassReport()
        self.hook = hook
        self.evaluations: list[int] = []
        """Number of nodes of every pass that succeeded and was not over a prompt alone."""
        self.prefilled: list[int] = []
        """Number of tokens of every part of a pass that read a prompt and succeeded."""
        self.n_passes = 0
        """Number of passes that succeeded."""
        self._take: Take | None = None
        self._n_given = 0
        self._stall_share = stall_share
        self._cost = cost
        self._texts = [FakeText() for _ in range(n_texts)]
        self._is_running = False
        self._is_cancelled = threading.Event()
        self._is_closed = False

    def committed_of(self, slot: int) -> int:
        return len(self._texts[slot].committed)

    @property
    def committed(self) -> tuple[int, ...]:
        return self.text(0)

    def text(self, slot: int) -> tuple[int, ...]:
        """The committed tokens of a slot."""
        return tuple(self._texts[slot].committed)

    @property
    def n_provisional(self) -> int:
        return sum(len(text.cells) for text in self._texts)

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        if len(parts) == 1 and not parts[0].nodes and not parts[0].by_row:
            self._read(parts[0].reads, parts[0].slot, progress)
            return [np.empty((0, self.info.n_vocab), np.float32)]
        logits = self._evaluate(parts)
        if progress is not None:
            progress("prompt", 0.5)
            progress("prompt", 1.0)
        return logits

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        of = self._texts[slot]
        assert not of.cells, "a prompt with provisional nodes around"
        if len(of.committed) + len(tokens) > self.info.n_ctx:
            raise UsageError("past the end of the context")
        self._begin()
        try:
            self._run_hook()
        finally:
            self._is_running = False
        of.read(tokens)
        self._check_cells()
        if slot == 0:
            self._give(len(of.committed) - len(tokens))
        self.n_passes += 1
        self.prefilled.append(len(tokens))
        self.last_report = self._report(len(tokens))
        if progress is not None:
            progress("prompt", 1.0)

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        committed = [self.committed_of(part.slot) for part in parts]
        if len(parts) == 1 and committed[0] + parts[0].n_rows > self.info.n_ctx and parts[0].reads:
            raise UsageError("past the end of the context")
        self._begin()
        try:
            self._check_batch(parts)
            self._run_hook()
            self._check_cells(sum(len(part.reads) for part in parts))
            logits = []
            for part in parts:
                of = self._texts[part.slot]
                of.committed += part.reads
                for node in part.nodes:
                    of.fill(part.pool, node, self.info.n_ctx)
                contexts = [of.context(int(part.pool.key[node])) for node in part.nodes]
                rows = np.empty((len(contexts), self.info.n_vocab), np.float32)
                for row, context in zip(rows, contexts, strict=True):
                    row[:] = self.language(context)
                logits.append(rows)
        except BaseException:
            for part, n_tokens in zip(parts, committed, strict=True):
                self._texts[part.slot].cells.clear()
                del self._texts[part.slot].committed[n_tokens:]
            raise
        finally:
            self._is_running = False
        for part, n_tokens in zip(parts, committed, strict=True):
            if part.slot == 0:
                self._give(n_tokens)
        self.n_passes += 1
        self.evaluations.append(sum(len(part.nodes) for part in parts))
        self.prefilled += (len(part.reads) for part in parts if part.reads)
        n_rows = sum(part.n_rows for part in parts)
        if not self.info.tree_capable:
            n_rows = sum(len(part.reads) + n_line_rows(part.pool, part.nodes) for part in parts)
        self.last_report = self._report(n_rows)
        return logits

    def commit(
        self, tree: OneTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        assert not self._is_running, "commit while another call runs"
        self._texts[slot].commit(tree, path, keep)
        if slot == 0:
            self._give(len(self.committed) - len(path))

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        if not all(layer == 0 for layer in layers):
            raise UsageError(f"a fake model has one layer, 0, and not all of {list(layers)}")
        self._take, self._n_given = take, len(layers)

    def _give(self, begin: int) -> None:
        """Hand over the features of the tokens from `begin` on."""
        if self._take is not None and begin < len(text := self.committed):
            rows = [fake_features(text[: end + 1]) for end in range(begin, len(text))]
            self._take(begin, np.stack([np.stack([row] * self._n_given) for row in rows]))

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        assert not self._is_running, "truncate while another call runs"
        self._texts[slot].truncate(n_tokens, exactly=self.info.tree_capable)

    def share(self, source: int, target: int, n_tokens: int) -> None:
        assert n_tokens <= self.committed_of(source), "more than the source holds"
        self._texts[target].cells.clear()
        self._texts[target].committed = self._texts[source].committed[:n_tokens]

    def write_block(self, begin: int, slot: int) -> memoryview:
        assert not self._is_running, "a block while another call runs"
        block = self._texts[slot].committed[begin : begin + FAKE_BLOCK_TOKENS]
        assert len(block) == FAKE_BLOCK_TOKENS, "a block that is not committed"
        return memoryview(np.array(block, "<i4").tobytes())

    def read_block(self, content: memoryview, slot: int) -> None:
        of = self._texts[slot]
        assert not self._is_running, "a block while another call runs"
        assert not of.cells, "a block with provisional nodes around"
        if content.nbytes != 4 * FAKE_BLOCK_TOKENS:
            raise StateError("a block of another size")
        of.committed += np.frombuffer(content, "<i4").tolist()

    def checkpoints(self, slot: int) -> Sequence[int]:
        return sorted({*self._texts[slot].ends})

    def write_checkpoint(self, n_tokens: int, slot: int) -> Sequence[memoryview]:
        assert n_tokens in self._texts[slot].ends, "a checkpoint that is not kept"
        tokens = np.array(self._texts[slot].committed[:n_tokens], "<i4")
        pieces = np.split(tokens, range(FAKE_PIECE_TOKENS, n_tokens, FAKE_PIECE_TOKENS))
        ending = n_tokens.to_bytes(4, "little")
        return [memoryview(content) for content in (*(each.tobytes() for each in pieces), ending)]

    def read_checkpoint(self, n_tokens: int, pieces: Iterator[memoryview], slot: int) -> None:
        of = self._texts[slot]
        assert not of.committed, "a checkpoint in a slot that is not empty"
        assert int.from_bytes(next(pieces), "little") == n_tokens
        while len(of.committed) < n_tokens:
            of.committed += np.frombuffer(next(pieces), "<i4").tolist()
        of.ends = [n_tokens]

    def expect_end(self, n_tokens: int, slot: int) -> None:
        self._texts[slot].expected_end = n_tokens

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

    def _check_cells(self, n_more: int = 0) -> None:
        n_held = sum(len(text.committed) for text in self._texts) + n_more
        assert n_held <= (self.info.n_cells or n_held), "more tokens than cells"

    def _check_batch(self, parts: Sequence[PassPart]) -> None:
        info = self.info
        n_nodes = sum(len(part.nodes) for part in parts)
        n_rows = sum(part.n_rows for part in parts)
        assert all(part.n_rows for part in parts), "an empty batch"
        assert not any(part.reads and len(part.nodes) > 1 for part in parts), "a tree in a prompt"
        assert n_nodes <= info.max_nodes, f"{n_nodes} nodes in one batch"
        is_prompt = len(parts) == 1 and info.prompts_give_logits
        assert is_prompt or n_rows <= info.max_rows, f"{n_rows} rows in one batch"
        shares = is_prompt or info.prompts_share_passes
        assert n_nodes == n_rows or shares, "a prompt that rounds by its pass"
        deepest = max((int(p.pool.depth[node]) for p in parts for node in p.nodes), default=0)
        assert info.tree_capable or deepest <= info.max_rollback, "too long to drop again"
        assert len({part.slot for part in parts}) == len(parts), "a text twice"
        n_further = sum(
            self._texts[part.slot].n_branches(part, info.n_ctx) - 1 for part in parts if part.nodes
        )
        assert n_further < info.max_branches, "too many branches"

    def _report(self, n_tokens: int) -> PassReport:
        if self._cost is not None:
            return self._cost(n_tokens)
        report = PassReport(wall_s=1.0, n_tokens=n_tokens)
        return replace(report, stall_s=self._stall_share * report.wall_s)
