"""EAGLE-3 heads and prediction layers (MTP) on llama.cpp, computed from the target's features.

Position i of the head's cache belongs to token i + 1 of the text and the feature of token i. It
knows no target: features are given to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError, UsageError
from edgespec.pool import Pool
from edgespec.ports import PassPart, Progress
from edgespec_runtimes.gguf.borrowed import CopiedWeights
from edgespec_runtimes.gguf.context.rows import Rows
from edgespec_runtimes.gguf.context.sequences import HOME, likely_first
from edgespec_runtimes.gguf.file.heads import HeadShape
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib, llama_cpp_ext
from edgespec_runtimes.gguf.model import GgufModel, Opening


class HiddenStateReader(GgufModel):
    """A model computed from hidden states of another one, with some of its matrices."""

    def __init__(self, opening: Opening, head: HeadShape, borrowed: CopiedWeights | None) -> None:
        """Takes ownership of `borrowed`."""
        super().__init__(opening)
        # llama.cpp computes logits of all rows of a head's pass, or of none
        self.info = replace(self.info, prompts_share_passes=False, prompts_give_logits=False)
        self._borrowed = borrowed
        self._n_fused = len(head.layers) * head.n_values
        """Values of one token's hidden states."""
        self._rows = lib.llama_batch_ext_init(self._context)

    def _process(self, states: np.ndarray, begin: int, kind: int) -> None:
        """Compute hidden states [tokens, values] at the positions from `begin` on."""
        lib.llama_batch_ext_clear(self._rows)
        for place, row in enumerate(states, begin):
            index = lib.llama_batch_ext_add_embd(self._rows, HOME, _values(row))
            self._place(index, place)
        if code := self._run(kind):
            raise EdgespecError(f"llama.cpp failed to read features (code {code})")

    def _run(self, kind: int) -> int:
        """Compute the rows; returns llama.cpp's code."""
        with self._computing():
            return int(lib.llama_process(self._context, kind, self._rows))

    def _place(self, index: int, place: int) -> None:
        if index < 0:
            raise EdgespecError(f"llama.cpp refuses a row of a head (code {index})")
        # graphs of multimodal targets take positions in triples
        places = (ctypes.c_int32 * 4)(place, place, place, 0)
        lib.llama_batch_ext_set_pos(self._rows, index, places)

    def _outputs(self, n_rows: int) -> np.ndarray:
        """Output features of the latest computation, [n_rows, values], valid until the next one."""
        n_embd = self._model.n_embd
        pointer = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
        return abi.float_rows(ctypes.cast(pointer, ctypes.c_void_p).value or 0, n_rows, n_embd)

    def _release(self) -> None:
        lib.llama_batch_ext_free(self._rows)
        super()._release()
        if self._borrowed is not None:
            self._borrowed.close()


class GgufHead(HiddenStateReader):
    """An EAGLE-3 head.

    A feature is fused by the head from a token's hidden states, or predicted by it at a node for
    the tokens below.
    """

    def __init__(self, opening: Opening, head: HeadShape, borrowed: CopiedWeights | None) -> None:
        super().__init__(opening, head, borrowed)
        self._features = np.zeros((self.info.n_ctx, self._model.n_embd), np.float32)
        """Features from the target, by position."""
        self._known = range(0)
        """Positions with features in `_features`, or with states in `_waiting`."""
        self._states = np.zeros((self._shape.n_rows, self._n_fused), np.float32)
        """Hidden states that are not fused yet: few at once take as long as one."""
        self._waiting = range(0)
        """Positions of these states."""
        self._predicted: dict[int, np.ndarray] = {}
        """Features predicted at a node for the tokens below it, by node key."""
        self._inputs: np.ndarray = self._features[:0]
        """Features for the rows of the next evaluation."""
        self._has_first = False
        """True once the text's first token was read, which has no position in the cache."""
        llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, True)

    def committed_of(self, slot: int) -> int:
        return super().committed_of(slot) + self._has_first

    def take_features(self, position: int, rows: np.ndarray) -> None:
        known, rows = self._known, rows[: max(0, len(self._features) - position)]
        if not len(rows):
            return  # behind the head's context: what is before stays known
        begin = known.start if position in known or position == known.stop else position
        self._known = range(begin, position + len(rows))
        for place, row in enumerate(rows.reshape(-1, self._n_fused), position):
            if place != self._waiting.stop or len(self._waiting) == len(self._states):
                with self._users:
                    self._fuse_waiting()
                self._waiting = range(place, place)
            self._states[len(self._waiting)] = row
            self._waiting = range(self._waiting.start, place + 1)

    def drop_features(self, n_tokens: int) -> None:
        self._known = range(min(self._known.start, n_tokens), min(self._known.stop, n_tokens))

    def lacks_features(self, n_tokens: int) -> bool:
        begin = max(0, self.committed_of(HOME) - 1)
        return n_tokens > begin and not (
            self._known.start <= begin and n_tokens <= self._known.stop
        )

    def _read(self, tokens: Sequence[int], slot: int = 0, progress: Progress | None = None) -> None:
        self._fuse_waiting()
        n_committed = self.committed_of(slot)
        if self.lacks_features(n_committed + len(tokens) - 1):
            raise UsageError("a head reads tokens whose features were given, and some were not")
        rest = tokens if n_committed else tokens[1:]
        if rest:
            super()._read(rest, slot, progress)
        self._has_first = self._has_first or len(tokens) > 0

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        """Logits after each of the nodes, computed depth by depth.

        A node needs its parent's predicted feature, unless the target's is known.
        """
        if not self._has_first:
            raise UsageError("a head guesses from a text's second token on")
        self._fuse_waiting()
        [(_, pool, nodes, *_)] = parts
        ready = self._ready(pool, nodes)
        logits = self._predict(pool, ready)
        if len(ready) == len(nodes):
            return [logits]
        rows = dict(zip(ready, logits.copy(), strict=True))
        while waiting := [node for node in nodes if node not in rows]:
            ready = self._ready(pool, waiting)
            rows |= dict(zip(ready, self._predict(pool, ready).copy(), strict=True))
        return [np.stack([rows[node] for node in nodes])]

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        super().commit(pool, path, keep, slot)
        kept = {int(pool.key[node]) for node in keep}
        self._predicted = {key: row for key, row in self._predicted.items() if key in kept}

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        if n_tokens > (n_committed := self.committed_of(slot)):
            raise UsageError(f"{n_tokens} tokens are more than the {n_committed} committed")
        self._predicted.clear()
        super().truncate(max(0, n_tokens - 1), slot)
        self._has_first = self._has_first and n_tokens > 0

    def _ready(self, pool: Pool, nodes: Sequence[int]) -> list[int]:
        """The nodes whose input features are known. Raises UsageError if there are none."""
        ready = [node for node in nodes if self._input(pool, node) is not None]
        if not ready:
            raise UsageError("a node is evaluated whose features are not known")
        return ready

    def _predict(self, pool: Pool, nodes: Sequence[int]) -> np.ndarray:
        """Logits of nodes with known input features; stores the features predicted there."""
        ordered = likely_first(pool, nodes)
        found = (self._input(pool, node) for node in ordered)
        self._inputs = np.stack([row for row in found if row is not None])
        [logits] = super()._evaluate([PassPart(HOME, pool, nodes)])
        predicted = self._outputs(len(ordered)).copy()
        keys = (int(pool.key[node]) for node in ordered)
        self._predicted |= dict(zip(keys, predicted, strict=True))
        return logits

    def _input(self, pool: Pool, node: int) -> np.ndarray | None:
        """The input feature of a node: the target's, otherwise its parent's prediction; None if
        neither is known."""
        place = self._texts.all[0].n_committed + int(pool.depth[node])
        if place in self._known:
            row: np.ndarray = self._features[place]
            return row
        parent = int(pool.parent[node])
        return self._predicted.get(int(pool.key[parent])) if parent >= 0 else None

    def _fuse_waiting(self) -> None:
        if waiting := self._waiting:
            into = self._features[waiting.start : waiting.stop]
            self._fuse(self._states[: len(waiting)], into)
            self._waiting = range(waiting.stop, waiting.stop)

    def _fuse(self, states: np.ndarray, into: np.ndarray) -> None:
        """Fuse the hidden states of a few tokens, [tokens, values], into their features."""
        # takes no position in the cache, but llama.cpp requires consecutive positions
        last = lib.llama_memory_seq_pos_max(lib.llama_get_memory(self._context), HOME)
        self._process(states, last + 1, lib.LLAMA_PROCESS_TYPE_ENCODE)
        into[:] = self._outputs(len(states))

    def _compute(self, rows: Rows, with_logits: Collection[int]) -> int:
        features = self._inputs if with_logits else self._features[list(rows.positions)]
        lib.llama_batch_ext_clear(self._rows)
        columns = zip(rows.tokens, rows.positions, rows.sequences, features, strict=True)
        for token, position, ids, feature in columns:
            index = lib.llama_batch_ext_add_token(self._rows, ids[0], token)
            for sequence in ids[1:]:
                lib.llama_batch_ext_add_seq(self._rows, index, sequence)
            self._place(index, position)
            lib.llama_batch_ext_set_embd_token(self._rows, index, _values(feature))
            lib.llama_batch_ext_set_output_logits(self._rows, index, bool(with_logits))
        if self._borrowed is not None:
            self._borrowed.fetch(set(rows.tokens))
        return self._run(lib.LLAMA_PROCESS_TYPE_DECODE)

    def _roll_back(self, committed: Mapping[int, int]) -> None:
        self._predicted.clear()
        super()._roll_back(committed)


def _values(row: np.ndarray) -> Any:
    """Pointer to a float32 row, which llama.cpp copies."""
    pointer = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return lib.llama_embd(pointer, 1, row.size)


class GgufOwnHead(GgufHead):
    """A target's own prediction layer (MTP), whose features are the target's last hidden states."""

    def _fuse(self, states: np.ndarray, into: np.ndarray) -> None:
        into[:] = states
