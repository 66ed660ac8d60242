"""Builds the graph's inputs for tokens or tree nodes, and assigns its outputs to cache slots.

If the graph accepts an attention mask, a tree is one row with a mask for its branches. Otherwise
every branch is a row of its own: the path to a leaf, after the committed prefix and the evaluated
part of the branch, padded to a common length and split into batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from edgespec.runtimes import even_parts
from edgespec_runtimes.onnx.files.roles import MASK, POSITIONS
from edgespec_runtimes.onnx.graph.rewriting import PAST_LENGTH, PAST_ROWS, MaskForm
from edgespec_runtimes.onnx.prepare.masks import causal

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Inputs and outputs of one run of the graph, for [rows, tokens] ids."""

    ids: Ints
    feeds: dict[str, np.ndarray]
    n_past: int
    """Number of cache slots that the graph reads."""
    places: Ints
    """Flat indices into [rows, tokens] of the new tokens; others are padding or repeated."""
    slots: Ints
    """Cache slots for the keys and values of `places`."""
    results: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows of the caller's logits for each of `places`; empty if no logits are needed."""
    is_direct: bool = True
    """True for one row without padding, in slots directly after the past, with consecutive results:
    no copy is needed."""
    text: int = 0
    """Number of the text, which selects its cache."""

    def of(self, text: int, first_result: int = 0) -> Batch:
        """The batch as that of `text`, with results after those of other texts."""
        return replace(self, text=text, results=self.results + first_result)


@dataclass(frozen=True)
class Batcher:
    """Builds the batches of one model."""

    masks: Sequence[MaskForm]
    """Masks that the graph accepts; if empty, every branch is a row."""
    chunk: int
    """Most prompt tokens in one batch."""
    max_rows: int
    """Most rows in one batch."""
    alone: bool = False
    """True if every token needs a batch of its own, because tokens in a batch affect each other."""

    def prompt(self, tokens: Sequence[int], begin: int) -> Iterator[Batch]:
        """Batches of prompt tokens, the first of which has position `begin`."""
        at = 0
        for n in even_parts(len(tokens), 1 if self.alone else self.chunk):
            ids = np.array([tokens[at : at + n]], np.int64)
            first = begin + at
            at += n
            slots = np.arange(first, first + n)
            feeds = self._feeds(causal(first, n), first, slots[None])
            yield Batch(ids, feeds, first, np.arange(n), slots)

    def tree(
        self, tokens: Ints, depths: Ints, chains: Sequence[tuple[int, ...]], n_committed: int
    ) -> Iterator[Batch]:
        """Batches of tree nodes; each chain has the slots from the root to the node."""
        if not self.masks:
            yield from self._rows(tokens, depths, chains, n_committed)
            return
        first, n = chains[0][-1], len(tokens)
        seen = np.zeros((n, first + n), np.bool_)
        seen[:, :n_committed] = True
        for i, chain in enumerate(chains):
            seen[i, chain] = True
        positions = n_committed + depths
        # without a past, GroupQueryAttention counts positions by itself: a root is computed alone
        begins = [*range(n)] if self.alone else [*range(min(n, 2))] if first == 0 else [0]
        for at, end in pairwise([*begins, n]):
            mine = slice(at, end)
            feeds = self._feeds(seen[mine, : first + end], first + at, positions[None, mine])
            numbers = np.arange(at, end)
            ids = tokens[None, mine]
            yield Batch(ids, feeds, first + at, numbers - at, first + numbers, numbers)

    def _feeds(self, seen: np.ndarray, n_past: int, positions: Ints) -> dict[str, np.ndarray]:
        """Inputs of one row, where `seen` is the attention mask, bool [new, past + new]."""
        feeds = {
            POSITIONS: positions,
            PAST_LENGTH: np.array([n_past], np.int64),
            MASK: np.ones((1, seen.shape[1]), np.int64),
        }
        if not self.masks:
            feeds[PAST_ROWS] = np.arange(n_past)[None]
        for name, shown, hidden in self._mask_values:
            feeds[name] = np.where(seen, shown, hidden)[None, None]
        return feeds

    @cached_property
    def _mask_values(self) -> list[tuple[str, Any, Any]]:
        """Names of the masks, and their two values."""
        kinds = [helper.tensor_dtype_to_np_dtype(form.kind).type for form in self.masks]
        return [
            (form.name, kind(form.seen), kind(form.unseen))
            for form, kind in zip(self.masks, kinds, strict=True)
        ]

    def _rows(
        self, tokens: Ints, depths: Ints, chains: Sequence[tuple[int, ...]], n_committed: int
    ) -> Iterator[Batch]:
        first = chains[0][-1]
        branches: list[tuple[tuple[int, ...], tuple[int, ...]]]
        if self.alone:
            branches = [(chain[:-1], (i,)) for i, chain in enumerate(chains)]
        else:
            parents = {slot for chain in chains for slot in chain[:-1]}
            leaves = [chain for chain in chains if chain[-1] not in parents]
            branches = [
                (
                    tuple(slot for slot in chain if slot < first),
                    tuple(slot - first for slot in chain if slot >= first),
                )
                for chain in leaves
            ]
        step = 1 if self.alone else self.max_rows
        done: set[int] = set()
        for at in range(0, len(branches), step):
            yield self._row_batch(
                branches[at : at + step], tokens, depths, n_committed, first, done
            )

    def _row_batch(
        self,
        branches: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        tokens: Ints,
        depths: Ints,
        n_committed: int,
        first: int,
        done: set[int],
    ) -> Batch:
        """One batch of rows (evaluated slots, nodes to evaluate) after the committed prefix.

        The past is padded at its beginning and new tokens at their end, so no token attends to
        padding.
        """
        n_past = n_committed + max(len(before) for before, _ in branches)
        n_new = max(len(nodes) for _, nodes in branches)
        n_rows = len(branches)
        ids, positions = np.zeros((2, n_rows, n_new), np.int64)
        past = np.zeros((n_rows, n_past), np.int64)
        mask = np.zeros((n_rows, n_past + n_new), np.int64)
        places, numbers = [], []
        for row, (before, nodes) in enumerate(branches):
            n_padding = n_past - len(before) - n_committed
            past[row, n_padding:] = [*range(n_committed), *before]
            mask[row, n_padding : n_past + len(nodes)] = 1
            ids[row, : len(nodes)] = tokens[list(nodes)]
            positions[row, : len(nodes)] = n_committed + depths[list(nodes)]
            for column, node in enumerate(nodes):
                if node not in done:
                    done.add(node)
                    places.append(row * n_new + column)
                    numbers.append(node)
        feeds = {
            POSITIONS: positions,
            PAST_LENGTH: np.array([n_past], np.int64),
            PAST_ROWS: past,
            MASK: mask,
        }
        node_rows = np.array(numbers, np.int64)
        n_read = max(n_committed, 1 + max((s for b, _ in branches for s in b), default=-1))
        slots = first + node_rows
        is_direct = n_rows == 1 and np.array_equal(slots, n_read + np.arange(n_new))
        return Batch(ids, feeds, n_read, np.array(places, np.int64), slots, node_rows, is_direct)
