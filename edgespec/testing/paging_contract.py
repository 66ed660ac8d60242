"""What every runtime that pages weights promises, and how its tests open a paged model.

A suite inherits from `PagingContract` and gives the fixture `paged`: a model with some of its
weights streamed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.errors import Cancelled, WeightReadError
from edgespec.memory.budget import plan_memory
from edgespec.ports import LanguageModel
from edgespec.runtimes import PreparedModel
from edgespec.testing.port_contract import TEXT
from edgespec.tree import ROOT, TokenTree


def load_paged(prepared: PreparedModel, share: float = 0.5) -> LanguageModel:
    """With room for a share of the streamable weights; 0 is the smallest budget.

    `prepared` is closed.
    """
    try:
        rows, paged, cuts = prepared.fixed_rows(), prepared.paged_rows(), prepared.segmentations()
        taken = sum(row.nbytes for row in (*rows, *paged))
        least = min(sum(sorted(s.slot_bytes for s in cut)[-2:]) for cut in cuts)
        room = max(least, int(share * sum(s.slot_bytes for s in cuts[0])))
        return prepared.load(plan_memory(taken + room, rows, cuts, None, paged))
    finally:
        prepared.close()


def one_by_one(model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits after every token, each committed by itself: float32 [tokens, n_vocab]."""
    rows = []
    for token in tokens:
        tree = TokenTree(token)
        rows.append(model.evaluate(tree, [ROOT])[0])
        model.commit(tree, [ROOT])
    return np.stack(rows)


def pager_of(model: Any) -> Any:
    pager = model._weights.pager
    assert pager is not None
    return pager


class PagingContract:
    def test_a_read_error_reaches_the_caller_and_the_model_works_afterwards(
        self, paged: LanguageModel
    ) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:4]
        expected = one_by_one(paged, tokens)
        paged.truncate(0)
        reader = pager_of(paged)._reader
        good = reader.read
        failing = threading.Event()
        failing.set()

        def read(*arguments: object) -> int:
            if failing.is_set():
                raise WeightReadError("the cable was pulled")
            n: int = good(*arguments)
            return n

        reader.read = read
        with pytest.raises(WeightReadError, match="cable"):
            one_by_one(paged, 3 * tokens)  # the ring may hold a pass already
        failing.clear()
        paged.truncate(0)
        assert np.array_equal(one_by_one(paged, tokens), expected)

    def test_cancelling_a_pass_that_waits_for_reads_ends_it(self, paged: LanguageModel) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:24]
        reader = pager_of(paged)._reader
        good = reader.read
        released = threading.Event()

        def hang(*arguments: object) -> int:
            released.wait(10)
            n: int = good(*arguments)
            return n

        reader.read = hang
        timer = threading.Timer(0.2, paged.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            one_by_one(paged, tokens)
        released.set()
        assert paged.n_committed < 24

    def test_closing_leaves_no_thread(self, paged: LanguageModel) -> None:
        paged.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("edgespec")]
