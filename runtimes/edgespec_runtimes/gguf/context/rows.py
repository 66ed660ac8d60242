"""The rows of a pass over several texts, and llama.cpp's batch of them."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgespec.ports import PassPart
from edgespec_runtimes.gguf.context.sequences import Texts, likely_first
from edgespec_runtimes.gguf.llama.bindings import lib


@dataclass(slots=True)
class Rows:
    """Token, position and sequences of each row of a pass over prompt tokens and trees."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    n_read: int = 0
    """Number of prompt rows, which come first, because the cells of guesses may soon be free."""
    first_reads: range = range(0)
    """Prompt rows of text 0."""
    orders: list[list[int]] = field(default_factory=list)
    """Rows of the nodes of each part, counted from `n_read`."""
    row_of_key: dict[int, int] = field(default_factory=dict)
    """Rows of the nodes of text 0, by node key."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[list[int]],
    ) -> None:
        self.tokens.extend(tokens)
        self.positions.extend(positions)
        self.sequences.extend(sequences)

    @classmethod
    def of(cls, parts: Sequence[PassPart], texts: Texts) -> Rows:
        """Assign cells and sequences to the rows of `parts`; prompt tokens are committed.

        Raises UsageError if there are too few branches.
        """
        rows = cls()
        for slot, _, nodes, reads, _ in parts:
            if reads:
                assert len(nodes) <= 1, "no other sequence holds them yet"
                if slot == 0:
                    rows.first_reads = range(len(rows), len(rows) + len(reads))
                branches = texts.all[slot]
                begin = branches.n_committed
                homes = [[branches.home]] * len(reads)
                rows.extend([*map(int, reads)], range(begin, begin + len(reads)), homes)
                branches.read(len(reads))
        rows.n_read = len(rows.tokens)
        for slot, pool, nodes, *_ in parts:
            branches = texts.all[slot]
            begin, first = branches.n_committed, len(rows.tokens)
            ordered = likely_first(pool, nodes)
            row_of = {node: first + n for n, node in enumerate(ordered)}
            rows.orders.append([row_of[node] - rows.n_read for node in nodes])
            rows.extend(
                [int(pool.token[node]) for node in ordered],
                [begin + int(pool.depth[node]) for node in ordered],
                branches.place(pool, ordered),
            )
            if slot == 0:
                rows.row_of_key = {int(pool.key[node]): row for node, row in row_of.items()}
        return rows

    def in_order(self, logits: np.ndarray) -> list[np.ndarray]:
        """The rows of each part in the order of its nodes: views of `logits`, sorted in place."""
        if len(self.orders) == len(logits) == 1:
            return [logits]
        parts, begin = [], 0
        for order in self.orders:
            part = logits[begin : begin + len(order)]
            permute(part, [row - begin for row in order])
            parts.append(part)
            begin += len(order)
        return parts


def permute(rows: np.ndarray, order: Sequence[int]) -> None:
    """Move row `order[i]` to `i` for all i, with memory for one more row."""
    is_moved = [False] * len(order)
    for first, row in enumerate(order):
        if is_moved[first] or row == first:
            continue
        aside, place = rows[first].copy(), first
        while (row := order[place]) != first:
            rows[place] = rows[row]
            is_moved[place] = True
            place = row
        rows[place] = aside
        is_moved[place] = True


_N_SECTIONS = 4
"""`GGML_MROPE_SECTIONS`."""


class RowBatch:
    """llama.cpp's batch of the rows of a pass."""

    def __init__(self, n_rows: int, n_sequences: int, n_values: int = 0) -> None:
        """Allocate a batch of `n_rows` rows in up to `n_sequences` sequences each.

        Rows are tokens, or embeddings of `n_values`.
        """
        self.raw = batch = lib.llama_batch_init(n_rows, n_values, n_sequences)
        self._own_positions = ctypes.cast(batch.pos, ctypes.c_void_p).value or 0
        # embeddings have positions in each of the sections that some models rotate
        self._positions = (ctypes.c_int32 * (_N_SECTIONS * n_rows if n_values else 0))()
        if n_values:
            batch.pos = ctypes.cast(self._positions, type(batch.pos))
        # each access to a field of the struct creates a new pointer
        self._fields = batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits
        self._n_values = n_values

    def fill(self, rows: Rows, with_logits: Collection[int]) -> None:
        """Set the batch to `rows`; `with_logits` has the indices of rows that need logits."""
        self.raw.n_tokens = len(rows.tokens)
        row_token, row_position, row_n_ids, row_ids, row_logits = self._fields
        columns = zip(rows.tokens, rows.positions, rows.sequences, strict=True)
        for i, (token, position, ids) in enumerate(columns):
            if not self._n_values:
                row_token[i] = token
            row_position[i] = position
            row_n_ids[i] = len(ids)
            ids_of_row = row_ids[i]
            for j, sequence in enumerate(ids):
                ids_of_row[j] = sequence
            row_logits[i] = i in with_logits
        if self._n_values:
            self._positions[: _N_SECTIONS * len(rows)] = [*rows.positions] * _N_SECTIONS

    def embeddings(self, n_rows: int) -> np.ndarray:
        """Embeddings of the first `n_rows` rows, float32 [n_rows, n_values], to be written."""
        address = ctypes.cast(self.raw.embd, ctypes.c_void_p).value
        content: Any = (ctypes.c_float * (n_rows * self._n_values)).from_address(address or 0)
        return np.frombuffer(content, np.float32).reshape(n_rows, self._n_values)

    def free(self) -> None:
        self.raw.pos = ctypes.cast(self._own_positions, type(self.raw.pos))
        lib.llama_batch_free(self.raw)
