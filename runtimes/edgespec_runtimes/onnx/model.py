"""Models on onnxruntime behind the engine's port: draft or target, resident or paged.

Knows committed and provisional tokens; batches, weights and sessions are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from edgespec.concurrency.owning import Users, close_all
from edgespec.errors import UsageError
from edgespec.paging.reader import WatchedFiles
from edgespec.pool import Pool
from edgespec.ports import PassPart, Progress, StateOrigin, Vocabulary
from edgespec.tracing.spans import Trace, Track
from edgespec.values import ModelInfo
from edgespec_runtimes.kit.running import RunningModel
from edgespec_runtimes.onnx.batches import Batch, Batcher
from edgespec_runtimes.onnx.decoder import Decoder


class OnnxModel(RunningModel):
    """A loaded ONNX model, which owns its decoder and `files`.

    Texts in one pass have separate batches: each piece's weights are read once for all of them, and
    a text rounds as it does alone, which it would not as a row of a common batch.
    """

    def __init__(
        self,
        decoder: Decoder,
        batcher: Batcher,
        info: ModelInfo,
        vocabulary: Vocabulary,
        tokens_per_pass: int,
        trace: Trace,
        origin: StateOrigin,
        files: WatchedFiles | None,
    ) -> None:
        """`files` are those that onnxruntime has mapped."""
        info = replace(info, prompts_give_logits=True, adjusts=decoder.weights is not None)
        blocks = decoder.caches[0].block_tokens
        self.info = replace(info, prompt_batch=tokens_per_pass, block_tokens=blocks)
        super().__init__(vocabulary, origin, decoder.stop, Users("the model"))
        self._decoder = decoder
        self._caches = decoder.caches
        self._weights = decoder.weights
        self._batcher = batcher
        self._files = files
        self._tokens_per_pass = tokens_per_pass
        self._trace = trace

    def committed_of(self, slot: int) -> int:
        return self._caches[slot].n_committed

    def _read(self, tokens: Sequence[int], slot: int = 0, progress: Progress | None = None) -> None:
        self._read_to_root(PassPart(slot, reads=tokens), progress)

    def _read_to_root(self, part: PassPart, progress: Progress | None) -> np.ndarray:
        """Append the tokens of a prompt, with the planned number of tokens per pass; logits of its
        root, if it has one, which has a batch of its own and rounds as in a pass of its own."""
        slot, tokens = part.slot, part.reads
        start, cache, n_nodes = self.committed_of(slot), self._caches[slot], len(part.nodes)
        self._check_room(start + part.n_rows)
        logits = np.empty((0, self.info.n_vocab), np.float32)
        with self._computing(part.n_rows, committed := {slot: start}):
            cache.truncate(start)
            prompt = self._prompt_batches(tokens, self._tokens_per_pass, progress)
            for begin, chunk, report in prompt:
                batches = [*self._batcher.prompt(chunk, committed[slot])]
                cache.extend(len(chunk))
                is_last = begin + len(chunk) == len(tokens)
                if n_nodes and is_last:
                    batches += self._batches(part._replace(reads=()))
                mine = [batch.of(slot) for batch in batches]
                logits = self._pass(mine, n_nodes * is_last, report)
                committed[slot] = cache.n_committed
        return logits

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        n_nodes = sum(len(part.nodes) for part in parts)
        if not 0 < n_nodes <= self.info.max_nodes:
            raise UsageError(f"evaluate takes 1 to {self.info.max_nodes} nodes, not {n_nodes}")
        committed = {part.slot: self.committed_of(part.slot) for part in parts}
        ends = [*accumulate(len(part.nodes) for part in parts)]
        with self._computing(n_nodes, committed):
            batches = [
                batch.of(part.slot, end - len(part.nodes))
                for part, end in zip(parts, ends, strict=True)
                for batch in self._batches(part)
            ]
            rows = self._pass(batches, n_nodes)
            return [rows[begin:end] for begin, end in pairwise([0, *ends])]

    def _batches(self, part: PassPart) -> Iterator[Batch]:
        """Batches of a tree's nodes, which are assigned slots in the text's cache."""
        assert not part.reads, "prompts round by the batches they are read in"
        pool, nodes, cache = part.pool, list(part.nodes), self._caches[part.slot]
        chains = cache.place(pool, nodes)
        tokens, depths = pool.token[nodes].astype(np.int64), pool.depth[nodes].astype(np.int64)
        return self._batcher.tree(tokens, depths, chains, cache.n_committed)

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        with self._users:
            self._caches[slot].commit(pool, path, keep)

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        with self._users:
            self._caches[slot].truncate(n_tokens)

    def share(self, source: int, target: int, n_tokens: int) -> None:
        with self._users:
            self._caches[target].begin_with(self._caches[source], n_tokens)

    def write_block(self, begin: int, slot: int) -> memoryview:
        with self._users:
            return self._caches[slot].block(begin)

    def read_block(self, content: memoryview, slot: int) -> None:
        with self._users:
            self._caches[slot].append_block(content)

    def _release(self) -> None:
        super()._release()
        close_all(self._decoder.close, *((self._files.close,) if self._files else ()))

    def _pass(
        self,
        batches: Sequence[Batch],
        n_logits: int,
        on_piece: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        self._n_passes += 1
        if self._files:
            self._files.check()
        if self._weights:
            self._weights.settle()
            self._weights.passes += 1
        n_tokens = sum(len(batch.slots) for batch in batches)
        with self._trace.span(Track.TARGET, "pass").note(tokens=n_tokens):
            logits = self._decoder.run(batches, n_logits, on_piece)
        if self._files:
            self._files.check()  # what was written to meanwhile has told in the logits
        return logits

    @contextmanager
    def _computing(self, n_tokens: int, committed: Mapping[int, int]) -> Iterator[None]:
        """Context manager for a cancellable call over `n_tokens`, which is rolled back on
        failure."""
        with self._running():
            self._n_rows = n_tokens
            try:
                yield
            except BaseException:
                for slot, n_committed in committed.items():
                    self._caches[slot].truncate(n_committed)
                raise
