"""DFlash and DSpark heads on llama.cpp, which guess several tokens in one pass.

The head's KV cache is computed from the target's hidden states, not from tokens. It knows no
target: features are given to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgespec.errors import EdgespecError, UsageError
from edgespec.pool import Pool
from edgespec.ports import PassPart, Progress
from edgespec_runtimes.gguf.borrowed import CopiedWeights
from edgespec_runtimes.gguf.context.rows import Rows
from edgespec_runtimes.gguf.context.sequences import HOME
from edgespec_runtimes.gguf.file.heads import HeadShape
from edgespec_runtimes.gguf.head import HiddenStateReader
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext
from edgespec_runtimes.gguf.model import Opening


class GgufBlockHead(HiddenStateReader):
    """A block diffusion head.

    Features enter the cache when they are given; prompts and `commit` only count their tokens as
    read. A pass attends to what was read, and leaves nothing in the cache.
    """

    def __init__(self, opening: Opening, head: HeadShape, borrowed: CopiedWeights | None) -> None:
        super().__init__(opening, head, borrowed)
        assert head.block is not None
        self.block_guesses = self.info.block_guesses
        self._block = head.block
        self._n_read = 0
        self._guessed: tuple[int, int] | None = None
        """Text length and root token of the latest pass, while its results are valid."""
        self._block_sequence = self._shape.n_seq - 1
        """Spare sequence for passes, free after each of them."""
        n_ctx = max(0, self.info.n_ctx - self._block.size)
        self.info = replace(self.info, n_ctx=n_ctx, max_nodes=self.block_guesses)
        lib.llama_set_causal_attn(self._context, self._block.is_causal)
        if self.info.is_chained:
            llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, False)

    @property
    def _n_known(self) -> int:
        """Tokens whose features are in the cache."""
        return self._texts.all[HOME].n_committed

    def committed_of(self, slot: int) -> int:
        return self._n_read

    def take_features(self, position: int, rows: np.ndarray) -> None:
        if position > self._n_known:
            return  # a gap: features before these are missing
        self.drop_features(position)
        rows = rows[: max(0, self.info.n_ctx - position)]
        step = self._shape.largest_batch
        with self._users:
            for n in range(0, len(rows), step):
                states = np.ascontiguousarray(rows[n : n + step], np.float32)
                self._inject(states.reshape(len(states), self._n_fused))

    def drop_features(self, n_tokens: int) -> None:
        if n_tokens < self._n_known:
            self._guessed = None
            with self._users:
                self._texts.truncate({HOME: n_tokens})
            self._n_read = min(self._n_read, n_tokens)

    def lacks_features(self, n_tokens: int) -> bool:
        return n_tokens > self._n_known

    def _read(self, tokens: Sequence[int], slot: int = 0, progress: Progress | None = None) -> None:
        """Count `tokens` as read; their features are already in the cache."""
        if self.lacks_features(self._n_read + len(tokens)):
            raise UsageError("a head reads tokens whose features were given, and some were not")
        self._n_read += len(tokens)

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """Logits after each node, which depend on its depth, and with a chained head also on its
        token. The first call for a text and a root computes one pass over root and masks."""
        [(_, pool, nodes, *_)] = parts
        depths = pool.depth[list(nodes)]
        if depths.max() >= self.block_guesses:
            raise UsageError(f"a block has guesses for 1 to {self.block_guesses} tokens in a row")
        root = self._n_read, int(pool.token[pool.path(nodes[0])[0]])
        if self._guessed != root:
            self._guess(root[1])
            self._guessed = root
        with self._users:
            logits: np.ndarray = self._logits(self._block.size)[self._block.first_row + depths]
            if self.info.is_chained:
                for row, node in zip(logits, nodes, strict=True):
                    self._score(row, int(pool.depth[node]), int(pool.token[node]))
        return [logits]

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        self._read(pool.token[list(path)].tolist())

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        if n_tokens > self._n_read:
            raise UsageError(f"{n_tokens} tokens are more than the {self._n_read} committed")
        self._n_read = n_tokens

    def _guess(self, root_token: int) -> None:
        """One pass over a block."""
        self._guessed = None
        tokens = [root_token, *[self._block.mask_token] * (self._block.size - 1)]
        places = range(self._n_read, self._n_read + len(tokens))
        with self._running():
            self._memory.copy(HOME, self._block_sequence, 0, self._n_read)
            try:
                rows = Rows(tokens, [*places], [[self._block_sequence]] * len(tokens))
                if self._borrowed is not None:
                    self._borrowed.fetch(tokens)
                # the graph computes logits of all rows, so all must be requested
                self._decode(rows, range(len(rows)), {})
            finally:
                self._memory.remove(self._block_sequence, -1, -1)

    def _score(self, logits: np.ndarray, depth: int, token: int) -> None:
        """Replace `logits` by the selector's scores after `token`, if it is one of its candidates.

        A position in llama.cpp's table has k candidates, followed by their k scores after each
        candidate of the previous position; at the first position, all are scores after the root.
        """
        n = self._block.n_candidates
        before, row = self._outputs(2 + depth)[-2:]
        (found,) = np.nonzero(before[:n] == token) if depth else ([0],)
        if len(found):
            begin = n * (1 + int(found[0]))
            logits[:] = -np.inf
            logits[row[:n].astype(np.int64)] = row[begin : begin + n]

    def _inject(self, states: np.ndarray) -> None:
        """Append keys and values computed from `states` [tokens, values] to the cache."""
        self._guessed = None
        try:
            self._process(states, self._n_known, lib.LLAMA_PROCESS_TYPE_DECODE)
        except EdgespecError:
            self._memory.remove(HOME, self._n_known, -1)
            raise
        self._texts.all[HOME].extend(len(states))
