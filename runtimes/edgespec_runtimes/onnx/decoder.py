"""Runs a whole pass of a decoder, from token ids to logits, piece by piece.

Each piece processes all batches before the next piece runs, so its weights are needed once per
pass, and each batch finds the keys and values of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.memory.heap import trim_heap
from edgespec_runtimes.onnx.batches import Batch
from edgespec_runtimes.onnx.cache import KEY, VALUE, KeyValueCache
from edgespec_runtimes.onnx.files.roles import IDS, LOGITS, Roles
from edgespec_runtimes.onnx.graph.cutting import ALWAYS, Cut, Piece
from edgespec_runtimes.onnx.graph.rewriting import LOGIT_ROWS, new_name, past_name
from edgespec_runtimes.onnx.ort.sessions import Bound, OrtSession, StopFlag
from edgespec_runtimes.onnx.weights.paged import EmbeddingTable, OnnxWeights


@dataclass(frozen=True, slots=True)
class _Wiring:
    """A piece's inputs and outputs by kind, determined once."""

    past: tuple[tuple[str, int, int], ...]
    """Inputs from the cache: name, layer, KEY or VALUE."""
    fed: tuple[tuple[str, str], ...]
    """Inputs that are fed or come from other pieces: names in the piece and in the decoder."""
    scales: Mapping[str, np.ndarray]
    """Inputs that are the same in every run, by name in the piece."""
    new: tuple[tuple[str, int, int], ...]
    """Outputs for the cache: name, layer, KEY or VALUE."""
    passed: tuple[tuple[str, str], ...]
    """Outputs for other pieces: names in the piece and in the decoder."""
    logits: str | None


class Decoder(Closeable):
    """Runs one model, with paged weights or with one session that contains them."""

    def __init__(
        self,
        cut: Cut,
        roles: Roles,
        caches: Sequence[KeyValueCache],
        stop: StopFlag,
        session: OrtSession | None,
        weights: OnnxWeights | None,
        embeddings: Sequence[tuple[str, EmbeddingTable]],
    ) -> None:
        """`caches` has one cache per text."""
        self.caches = caches
        self.stop = stop
        self.weights = weights
        self._session = session
        self._embeddings = embeddings
        self._n_vocab = roles.n_vocab
        self._has_float_logits = roles.logits_kind == TensorProto.FLOAT
        entries = {
            name(layer, what): (layer, kind)
            for layer in range(roles.n_layers)
            for what, kind in (("key", KEY), ("value", VALUE))
            for name in (past_name, new_name)
        }
        self._wiring = [_wired(piece, entries, cut.scales) for piece in cut.pieces]
        self._kept_bound: KeyValueCache | None = None
        """The cache that is bound to the session of everything."""
        fed = ((name, i) for i, wiring in enumerate(self._wiring) for _, name in wiring.fed)
        self._read_last = dict(fed)

    def run(
        self,
        batches: Sequence[Batch],
        n_logits: int,
        on_piece: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Evaluate batches in order; returns logits, float32 [n_logits, n_vocab].

        `Batch.results` gives their rows. Keys and values are written to the cache. Raises
        Cancelled, WeightReadError and EdgespecError.
        """
        logits = np.empty((n_logits, self._n_vocab), np.float32)
        values_by_batch = [self._fed(batch) for batch in batches]
        for i, wiring in enumerate(self._wiring):
            if not n_logits and wiring.logits and not (wiring.new or wiring.passed):
                continue
            with self._held(i) as (session, weights):
                for batch, values in zip(batches, values_by_batch, strict=True):
                    self._run_piece(session, wiring, batch, values, weights, logits)
            for values in values_by_batch:
                for name in [n for n in values if self._read_last.get(n, -1) <= i]:
                    del values[name]
            if on_piece:
                on_piece((i + 1) / len(self._wiring))
        return logits

    def close(self) -> None:
        close_all(
            *((self._session.close,) if self._session else ()),
            *(table.close for _, table in self._embeddings),
            *((self.weights.close,) if self.weights else ()),
            *(cache.close for cache in self.caches),
            trim_heap,
        )

    def _held(self, index: int) -> AbstractContextManager[tuple[OrtSession, Mapping[str, Bound]]]:
        if self.weights:
            return self.weights.held(index)
        assert self._session is not None
        return nullcontext((self._session, {}))

    def _fed(self, batch: Batch) -> dict[str, Any]:
        rows = batch.places if batch.results.size else np.empty(0, np.int64)
        feeds = batch.feeds | {IDS: batch.ids, LOGIT_ROWS: rows, ALWAYS: np.array(True)}
        feeds |= {name: table.rows(batch.ids) for name, table in self._embeddings}
        return {
            name: np.ascontiguousarray(array)
            for name, array in feeds.items()
            if name in self._read_last
        }

    def _keep_bound(self, cache: KeyValueCache, wiring: _Wiring) -> None:
        """Bind a text's cache to the session of everything, until another text is computed."""
        assert self._session is not None
        if cache is not self._kept_bound:
            self._kept_bound = cache
            self._session.keep_bound(_buffers(cache, wiring.past), _buffers(cache, wiring.new))

    def _run_piece(
        self,
        session: OrtSession,
        wiring: _Wiring,
        batch: Batch,
        values: dict[str, Any],
        weights: Mapping[str, Bound],
        logits: np.ndarray,
    ) -> None:
        cache, n_past, n_new = self.caches[batch.text], batch.n_past, batch.ids.shape[1]
        located = cache.located
        inputs: dict[str, Any] = {**weights, **wiring.scales}
        for short, name in wiring.fed:
            inputs[short] = values[name]
        outputs: dict[str, Bound | None] = {short: None for short, _ in wiring.passed}
        is_direct = batch.is_direct
        if cache.is_shared and self._session is not None:
            self._keep_bound(cache, wiring)
        elif cache.is_shared:
            inputs |= _buffers(cache, wiring.past)
            outputs |= _buffers(cache, wiring.new)
        else:
            for short, layer, kind in wiring.past:
                inputs[short] = located(layer, kind, 0, n_past)
            for short, layer, kind in wiring.new:
                outputs[short] = located(layer, kind, n_past, n_new, (1,)) if is_direct else None
        rows = self._rows(batch, logits)
        if wiring.logits:
            outputs[wiring.logits] = rows
        results = session.run(inputs, outputs, self.stop)
        for short, name in wiring.passed:
            values[name] = results[short]
        if not is_direct:
            for short, layer, kind in wiring.new:
                new = results[short].numpy()
                flat = new.reshape(-1, *new.shape[2:])
                cache.entries[layer, kind, batch.slots] = flat[batch.places]
        if wiring.logits and batch.results.size and rows is None:
            logits[batch.results] = results[wiring.logits].numpy()[0]

    def _rows(self, batch: Batch, logits: np.ndarray) -> Bound | None:
        """The rows of `logits` that a session can write; None if it must return them."""
        n = batch.results.size
        if not (n and batch.is_direct and self._has_float_logits):
            return None
        return Bound(np.float32, (1, n, self._n_vocab), logits[int(batch.results[0]) :].ctypes.data)


def _buffers(cache: KeyValueCache, names: Sequence[tuple[str, int, int]]) -> dict[str, Bound]:
    return {short: cache.buffers[layer][kind] for short, layer, kind in names}


def _wired(
    piece: Piece, entries: Mapping[str, tuple[int, int]], scales: Mapping[str, np.ndarray]
) -> _Wiring:
    """The wiring of a piece; `entries` has layer and KEY or VALUE by name in the decoder."""
    known = entries.keys() | scales.keys()
    return _Wiring(
        past=tuple((short, *entries[name]) for short, name in piece.inputs if name in entries),
        fed=tuple((short, name) for short, name in piece.inputs if name not in known),
        scales={short: scales[name] for short, name in piece.inputs if name in scales},
        new=tuple((short, *entries[name]) for short, name in piece.outputs if name in entries),
        passed=tuple(
            (short, name) for short, name in piece.outputs if name not in entries and name != LOGITS
        ),
        logits=next((short for short, name in piece.outputs if name == LOGITS), None),
    )
