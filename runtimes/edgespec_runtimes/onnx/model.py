"""Models on onnxruntime behind the engine's port: draft or target, resident or paged.

Knows committed and provisional tokens; batches, weights and sessions are elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from edgespec.concurrency.owning import Users
from edgespec.errors import ContextOverflow, UsageError
from edgespec.paging.store import PassMeter, paging_stats
from edgespec.ports import PassPart, Progress, Vocabulary
from edgespec.ports.features import Take
from edgespec.ports.kept_features import not_offered
from edgespec.ports.state import Read, StateOrigin, Write
from edgespec.runtimes import even_parts
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.tree import TokenTree
from edgespec.values import ModelInfo, PagingStats, PassReport
from edgespec_runtimes.onnx.batches import Batch, Batcher
from edgespec_runtimes.onnx.decoder import Decoder
from edgespec_runtimes.onnx.layer_inputs import LayerInputs
from edgespec_runtimes.onnx.weights.paged import OnnxWeights

PIECE_BYTES = 1 << 20
"""Bytes of the cache per piece of a state file."""


class OnnxModel:
    """A loaded ONNX model; implements `LanguageModel`, `KeepsState`, `IsAdjustable` and, if loaded
    for it, `GivesFeatures`. Owns its decoder.

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
        trace: Trace = OFF,
        *,
        origin: StateOrigin,
        layer_inputs: LayerInputs | None = None,
    ) -> None:
        """`layer_inputs` is the object that the decoder fills."""
        self.info = replace(info, prompt_batch=tokens_per_pass)
        self.state_origin = origin
        self.vocabulary = vocabulary
        self.last_report = PassReport()
        self._meter = PassMeter(time.perf_counter)
        self._decoder = decoder
        self._users = Users("the model")
        self._paging: PagingStats | None = None
        """Final totals, set when the model is closed."""
        self._caches = decoder.caches
        self._weights = decoder.weights
        self._batcher = batcher
        self._layer_inputs = layer_inputs
        self._tokens_per_pass = tokens_per_pass
        self._trace = trace
        self._state = threading.Lock()
        self._is_running = False
        self._n_passes = 0

    def committed_of(self, slot: int) -> int:
        return self._caches[slot].n_committed

    def evaluate(
        self, parts: Sequence[PassPart], progress: Progress | None = None
    ) -> list[np.ndarray]:
        """Logits after the nodes of each part, float32 [nodes, n_vocab].

        Raises UsageError for more nodes than `info` allows.
        """
        if len(parts) == 1 and not parts[0].nodes:
            self._read(parts[0].reads, parts[0].slot, progress)
            return [np.empty((0, self.info.n_vocab), np.float32)]
        return self._evaluate(parts)

    def _read(self, tokens: Sequence[int], slot: int, progress: Progress | None) -> None:
        """Append `tokens` to the committed prefix, with the planned number of tokens per pass."""
        start, cache = self.committed_of(slot), self._caches[slot]
        if start + len(tokens) > self.info.n_ctx:
            raise ContextOverflow(self.info.n_ctx, start + len(tokens))
        with self._running(len(tokens), {slot: start}) as decoder:
            cache.truncate(start)
            begin = 0
            for size in even_parts(len(tokens), self._tokens_per_pass):
                chunk = [int(token) for token in tokens[begin : begin + size]]

                def report(share: float, begin: int = begin, size: int = size) -> None:
                    if progress:
                        progress("reading the prompt", (begin + share * size) / len(tokens))

                batches = self._batcher.prompt(chunk, cache.n_committed)
                self._pass(decoder, [batch.of(slot) for batch in batches], 0, report)
                cache.extend(size)
                if self._layer_inputs and slot == 0:
                    self._layer_inputs.hand_over(start + begin, self._layer_inputs.rows)
                report(1.0)
                begin += size

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """Logits of trees, in one pass over the weights."""
        n_nodes = sum(len(part.nodes) for part in parts)
        if not 0 < n_nodes <= self.info.max_nodes:
            raise UsageError(f"evaluate takes 1 to {self.info.max_nodes} nodes, not {n_nodes}")
        committed = {part.slot: self.committed_of(part.slot) for part in parts}
        ends = np.cumsum([len(part.nodes) for part in parts])
        with self._running(n_nodes, committed) as decoder:
            batches = [
                batch.of(part.slot, int(end) - len(part.nodes))
                for part, end in zip(parts, ends, strict=True)
                for batch in self._batches(part)
            ]
            logits = np.split(self._pass(decoder, batches, n_nodes), ends[:-1])
            if self._layer_inputs:
                first = next((part for part in parts if part.slot == 0), None)
                keys = first.tree.key[list(first.nodes)].tolist() if first else ()
                self._layer_inputs.keep(dict(zip(keys, self._layer_inputs.rows, strict=False)))
            return logits

    def _batches(self, part: PassPart) -> Iterator[Batch]:
        """Batches of a tree's nodes, which are assigned slots in the text's cache."""
        assert not part.reads, "prompts round by the batches they are read in"
        tree, nodes, cache = part.tree, list(part.nodes), self._caches[part.slot]
        chains = cache.place(tree, nodes)
        tokens, depths = tree.token[nodes].astype(np.int64), tree.depth[nodes].astype(np.int64)
        return self._batcher.tree(tokens, depths, chains, cache.n_committed)

    def commit(
        self, tree: TokenTree, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        with self._users.use():
            position, keys = self.committed_of(slot), tree.key
            self._caches[slot].commit(tree, path, keep)
            if self._layer_inputs and slot == 0:
                kept = set(keys[list(keep)].tolist())
                self._layer_inputs.commit(position, keys[list(path)].tolist(), kept)

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        if self._layer_inputs is None or self._layer_inputs.layers != tuple(layers):
            raise not_offered(self.info, layers)
        self._layer_inputs.give(take)

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        with self._users.use():
            self._truncate(n_tokens, slot)

    def _truncate(self, n_tokens: int, slot: int) -> None:
        self._caches[slot].truncate(n_tokens)
        if self._layer_inputs and slot == 0:
            self._layer_inputs.drop()

    def share(self, source: int, target: int, n_tokens: int) -> None:
        with self._users.use():
            self._truncate(0, target)
            self._caches[target].begin_with(self._caches[source], n_tokens)

    @property
    def state_bytes(self) -> int:
        return 0  # the cache is read and written in place

    def write_state(self, hand_over: Write) -> None:
        with self._users.use():
            for block in self._caches[0].blocks(self.committed_of(0)):
                for begin in range(0, len(block), PIECE_BYTES):
                    hand_over(block[begin : begin + PIECE_BYTES])

    def read_state(self, n_tokens: int, read: Read) -> None:
        with self._users.use():
            self._truncate(0, 0)
            for block in self._caches[0].blocks(n_tokens):
                for begin in range(0, len(block), PIECE_BYTES):
                    read(block[begin : begin + PIECE_BYTES])
            self._caches[0].extend(n_tokens)

    @property
    def adjusting(self) -> OnnxWeights | None:
        return self._weights

    def paging(self) -> PagingStats:
        weights = self._weights
        if self._paging is not None:
            return self._paging
        if weights is None:
            return PagingStats()
        segments = [group.segment for group in weights.groups]
        return paging_stats(segments, weights.pinned_bytes, weights.stores, weights.passes)

    def cancel(self) -> None:
        with self._state:
            if self._is_running:
                self._decoder.stop.set()
                if self._weights:
                    self._weights.cancel()

    def close(self) -> None:
        """Cancel the running call, wait for it and free everything. Idempotent, from any thread."""
        self._users.close(self.cancel, self._release)

    def _release(self) -> None:
        self._paging = self.paging()
        self._decoder.close()

    def _pass(
        self,
        decoder: Decoder,
        batches: Sequence[Batch],
        n_logits: int,
        on_piece: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        self._n_passes += 1
        if self._weights:
            self._weights.settle()
        n_tokens = sum(len(batch.slots) for batch in batches)
        with self._trace.span(Track.TARGET, "pass").note(tokens=n_tokens):
            return decoder.run(batches, n_logits, on_piece)

    @contextmanager
    def _running(self, n_tokens: int, committed: Mapping[int, int]) -> Iterator[Decoder]:
        """Context manager for a cancellable call, which measures it and rolls back on failure."""
        decoder = self._decoder
        self._meter.begin(self._weights.stores if self._weights else ())
        self._n_passes = 0
        with self._users.use():
            with self._state:
                decoder.stop.clear()
                if self._weights:
                    self._weights.resume()
                self._is_running = True
            try:
                yield decoder
            except BaseException:
                for slot, n_committed in committed.items():
                    self._truncate(n_committed, slot)
                raise
            finally:
                with self._state:
                    self._is_running = False
                    decoder.stop.clear()
                if self._weights:
                    self._weights.passes += self._n_passes
        self.last_report = self._meter.report(self._n_passes, n_tokens)
