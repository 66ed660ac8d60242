"""Builds the graph's inputs for tokens or tree nodes, and assigns its outputs to cache slots.

If the graph accepts an attention mask, a tree is one batch with a mask for its branches. Otherwise
every branch has a batch of its own: the path to a leaf, after the committed prefix and the
evaluated part of the branch.
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

from edgespec.registry import even_parts
from edgespec_runtimes.onnx.files.roles import MASK, POSITIONS
from edgespec_runtimes.onnx.graph.rewriting import PAST_LENGTH, PAST_ROWS, MaskForm
from edgespec_runtimes.onnx.prepare.masks import causal

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Inputs and outputs of one run of the graph, for [1, tokens] ids."""

    ids: Ints
    feeds: dict[str, np.ndarray]
    n_past: int
    """Number of cache slots that the graph reads."""
    places: Ints
    """Indices of the new tokens; others are repeated."""
    slots: Ints
    """Cache slots for the keys and values of `places`."""
    results: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows of the caller's logits for each of `places`; empty if no logits are needed."""
    is_direct: bool = True
    """True if all tokens are new, in slots directly after the past, with consecutive results: no
    copy is needed."""
    text: int = 0
    """Number of the text, which selects its cache."""

    def of(self, text: int, first_result: int = 0) -> Batch:
        """The batch as that of `text`, with results after those of other texts."""
        return replace(self, text=text, results=self.results + first_result)


@dataclass(frozen=True)
class Batcher:
    """Builds the batches of one model."""

    masks: Sequence[MaskForm]
    """Masks that the graph accepts; if empty, every branch has a batch of its own."""
    chunk: int
    """Most prompt tokens in one batch."""
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
            feeds = self._feeds(causal(first, n), np.arange(first), slots[None])
            yield Batch(ids, feeds, first, np.arange(n), slots)

    def tree(
        self, tokens: Ints, depths: Ints, chains: Sequence[tuple[int, ...]], n_committed: int
    ) -> Iterator[Batch]:
        """Batches of tree nodes; each chain has the slots from the root to the node."""
        if not self.masks:
            yield from self._branches(tokens, depths, chains, n_committed)
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
            past = np.arange(first + at)
            feeds = self._feeds(seen[mine, : first + end], past, positions[None, mine])
            numbers = np.arange(at, end)
            ids = tokens[None, mine]
            yield Batch(ids, feeds, first + at, numbers - at, first + numbers, numbers)

    def _feeds(self, seen: np.ndarray, past: Ints, positions: Ints) -> dict[str, np.ndarray]:
        """Inputs of one row after the slots `past`; `seen` is the attention mask, bool
        [new, past + new]."""
        feeds = {
            POSITIONS: positions,
            PAST_LENGTH: np.array([past.size], np.int64),
            PAST_ROWS: past[None],
            MASK: np.ones((1, seen.shape[1]), np.int64),
        }
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

    def _branches(
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
        done: set[int] = set()
        for before, nodes in branches:
            ids = tokens[None, list(nodes)]
            n_new, past = len(nodes), np.array([*range(n_committed), *before], np.int64)
            positions = n_committed + depths[None, list(nodes)]
            feeds = self._feeds(causal(past.size, n_new), past, positions)
            places = np.array([i for i, node in enumerate(nodes) if node not in done], np.int64)
            done.update(nodes)
            numbers = np.array(nodes, np.int64)[places]
            n_read, slots = max((n_committed, *(1 + slot for slot in before))), first + numbers
            is_direct = np.array_equal(slots, n_read + np.arange(n_new))
            yield Batch(ids, feeds, n_read, places, slots, numbers, is_direct)
