"""The rows of a pass over several texts, and llama.cpp's batch of them."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgespec.ports import PassPart
from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.sequences import likely_first
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


def rows_of(parts: Sequence[PassPart], texts: Texts) -> Rows:
    """Assign cells and sequences to the rows of `parts`; prompt tokens are committed.

    Raises UsageError if there are too few branches.
    """
    rows = Rows()
    for slot, _, nodes, reads, _ in parts:
        if reads:
            assert len(nodes) <= 1, "no other sequence holds them yet"
            first, n_reads = len(rows.tokens), len(reads)
            if slot == 0:
                rows.first_reads = range(first, first + n_reads)
            branches = texts.all[slot]
            begin = branches.n_committed
            rows.tokens += map(int, reads)
            rows.positions += range(begin, begin + n_reads)
            rows.sequences += [[branches.home]] * n_reads
            branches.read(n_reads)
    rows.n_read = len(rows.tokens)
    for slot, pool, nodes, *_ in parts:
        branches = texts.all[slot]
        begin, first = branches.n_committed, len(rows.tokens)
        ordered = likely_first(pool, nodes)
        row_of = {node: first + n for n, node in enumerate(ordered)}
        rows.orders.append([row_of[node] - rows.n_read for node in nodes])
        rows.tokens += (int(pool.token[node]) for node in ordered)
        rows.positions += (begin + int(pool.depth[node]) for node in ordered)
        rows.sequences += branches.place(pool, ordered)
        if slot == 0:
            rows.row_of_key = {int(pool.key[node]): row for node, row in row_of.items()}
    return rows


def in_order(logits: np.ndarray, orders: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The rows of each part in the order of its nodes: views of `logits`, sorted in place."""
    if len(orders) == len(logits) == 1:
        return [logits]
    parts, begin = [], 0
    for order in orders:
        part = logits[begin : begin + len(order)]
        permute(part, [row - begin for row in order])
        parts.append(part)
        begin += len(order)
    return parts


def permute(rows: np.ndarray, order: Sequence[int]) -> None:
    """Move row `order[i]` to `i` for all i, some columns at a time."""
    is_ordered = [*order] == [*range(len(order))]
    for begin in range(0, 0 if is_ordered else rows.shape[1], PERMUTED_COLUMNS):
        columns = rows[:, begin : begin + PERMUTED_COLUMNS]
        columns[:] = columns[order]


PERMUTED_COLUMNS = 4096
"""Columns that are copied at once: logits of a tree may take tens of megabytes."""


class RowBatch:
    """llama.cpp's batch of the rows of a pass, in arrays of ours."""

    def __init__(self, n_rows: int, n_sequences: int, n_values: int = 0) -> None:
        """Up to `n_rows` rows, each in up to `n_sequences` sequences: tokens, or embeddings of
        `n_values`."""
        self.embeddings = np.zeros((n_rows, n_values), np.float32)
        """Embeddings of rows, to be written: float32 [n_rows, n_values]."""
        # embeddings have positions in each of the GGML_MROPE_SECTIONS that some models rotate
        self.n_sections = 4 if n_values else 1
        number: Any = ctypes.c_int32
        self.tokens = (number * n_rows)()
        self.positions = (number * (self.n_sections * n_rows))()
        self.ids = (number * n_sequences * n_rows)()
        self.ids_of_row = (ctypes.c_void_p * n_rows)(*map(ctypes.addressof, self.ids))
        self.n_ids = (number * n_rows)()
        self.logits: Any = (ctypes.c_int8 * n_rows)()
        self.raw: Any = lib.llama_batch()
        for name, array in (
            ("embd", self.embeddings.ctypes.data) if n_values else ("token", self.tokens),
            ("pos", self.positions),
            ("n_seq_id", self.n_ids),
            ("seq_id", self.ids_of_row),
            ("logits", self.logits),
        ):
            setattr(self.raw, name, ctypes.cast(array, type(getattr(self.raw, name))))


def fill(batch: RowBatch, rows: Rows, with_logits: Collection[int]) -> None:
    """Set `batch` to `rows`; `with_logits` has the indices of rows that need logits."""
    n = batch.raw.n_tokens = len(rows.tokens)
    batch.tokens[:n] = rows.tokens
    batch.positions[: n * batch.n_sections] = rows.positions * batch.n_sections
    for row, ids in enumerate(rows.sequences):
        batch.n_ids[row] = len(ids)
        batch.ids[row][: len(ids)] = ids
    batch.logits[:n] = [row in with_logits for row in range(n)]
