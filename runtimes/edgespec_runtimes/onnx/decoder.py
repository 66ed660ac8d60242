"""Runs the pieces of a decoder over batches: the whole of a pass, from token ids to logits.

Each piece runs over all batches before the next one does: its weights are needed once a pass,
however many batches there are, and a batch finds the keys and values of those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from edgespec.memory import return_free_memory
from edgespec.owning import Owner
from edgespec_runtimes.onnx.batches import Batch
from edgespec_runtimes.onnx.cache import KEY, VALUE, KeyValueCache
from edgespec_runtimes.onnx.cutting import ALWAYS, Cut, Piece
from edgespec_runtimes.onnx.rewriting import LOGIT_ROWS, new_name, past_name
from edgespec_runtimes.onnx.roles import IDS, LOGITS, Roles
from edgespec_runtimes.onnx.sessions import Bound, Session, Stop, value
from edgespec_runtimes.onnx.weights import EmbeddingTable, PagedWeights


class Decoder(Owner):
    """Weights and cache of one model: paged weights, or one session that has them in it."""

    def __init__(
        self,
        cut: Cut,
        roles: Roles,
        cache: KeyValueCache,
        stop: Stop,
        session: Session | None = None,
        weights: PagedWeights | None = None,
        embeddings: Sequence[tuple[str, EmbeddingTable]] = (),
    ) -> None:
        self.cache = cache
        self.stop = stop
        self.weights = weights
        self._cut = cut
        self._session = session
        self._embeddings = tuple(embeddings)
        self._n_vocab = roles.n_vocab
        self._entries = {
            name(layer, what): (layer, kind)
            for layer in range(roles.n_layers)
            for what, kind in (("key", KEY), ("value", VALUE))
            for name in (past_name, new_name)
        }
        self._read_last: dict[str, int] = {}
        for i, piece in enumerate(cut.pieces):
            self._read_last |= {name: i for _, name in piece.inputs}

    def run(
        self,
        batches: Sequence[Batch],
        n_logits: int,
        on_piece: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Evaluate batches in order; logits float32 [n_logits, n_vocab] as the batches number them.

        Keys and values go into the cache. Raises Cancelled, WeightReadError and EdgespecError.
        """
        logits = np.empty((n_logits, self._n_vocab), np.float32)
        known = [self._fed(batch) for batch in batches]
        for i, piece in enumerate(self._cut.pieces):
            if not n_logits and all(name == LOGITS for _, name in piece.outputs):
                continue
            with self._held(i) as (session, weights):
                for batch, values in zip(batches, known, strict=True):
                    self._run_piece(session, piece, batch, values, weights, logits)
            for values in known:
                for name in [n for n in values if self._read_last.get(n, -1) <= i]:
                    del values[name]
            if on_piece:
                on_piece((i + 1) / len(self._cut.pieces))
        return logits

    def close(self) -> None:
        if self._session:
            self._session.close()
        for _, table in self._embeddings:
            table.close()
        if self.weights:
            self.weights.close()
        self.cache.close()
        return_free_memory()

    def _held(self, index: int) -> AbstractContextManager[tuple[Session, Mapping[str, Bound]]]:
        if self.weights:
            return self.weights.held(index)
        assert self._session is not None
        return nullcontext((self._session, {}))

    def _fed(self, batch: Batch) -> dict[str, Any]:
        rows = batch.places if batch.results.size else np.empty(0, np.int64)
        feeds = batch.feeds | {IDS: batch.ids, LOGIT_ROWS: rows, ALWAYS: np.array(True)}
        feeds |= {name: table.rows(batch.ids) for name, table in self._embeddings}
        return {name: value(array) for name, array in feeds.items() if name in self._read_last}

    def _run_piece(
        self,
        session: Session,
        piece: Piece,
        batch: Batch,
        values: dict[str, Any],
        weights: Mapping[str, Bound],
        logits: np.ndarray,
    ) -> None:
        inputs: dict[str, Any] = dict(weights)
        for short, name in piece.inputs:
            if name in self._entries:
                layer, kind = self._entries[name]
                inputs[short] = self.cache.located(layer, kind, 0, batch.n_past)
            else:
                inputs[short] = values[name]
        outputs = {short: self._place(name, batch) for short, name in piece.outputs}
        made = session.run(inputs, outputs, self.stop)
        for short, name in piece.outputs:
            if short not in made:
                continue
            if name == LOGITS:
                if batch.results.size:
                    logits[batch.results] = made[short].numpy()[0]
            elif name in self._entries:
                layer, kind = self._entries[name]
                new = made[short].numpy()
                flat = new.reshape(-1, *new.shape[2:])
                self.cache.entries[layer, kind, batch.slots] = flat[batch.places]
            else:
                values[name] = made[short]

    def _place(self, name: str, batch: Batch) -> Bound | None:
        """Where an output can be written at once: keys and values that follow the past."""
        if name not in self._entries or not batch.is_direct:
            return None
        layer, kind = self._entries[name]
        place = self.cache.located(layer, kind, batch.n_past, batch.ids.shape[1])
        return Bound(place.kind, (1, *place.shape), place.address)
