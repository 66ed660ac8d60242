"""Contract tests of runtimes that page weights, and helpers to load a paged model.

A suite inherits from `PagingContract` and defines the fixture `paged`: a model with some of its
weights streamed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.errors import Cancelled, WeightReadError
from edgespec.memory.budget import plan_memory
from edgespec.ports import LanguageModel
from edgespec.runtimes import PreparedModel
from edgespec.tree import ROOT, TokenTree
from port_contract import TEXT


def load_paged(prepared: PreparedModel, share: float = 0.5) -> LanguageModel:
    """A model with memory for a share of the streamable weights; share 0 is the smallest budget.

    Closes `prepared`.
    """
    try:
        needs = prepared.needs()
        rows, paged = needs.common_rows(), needs.paged_rows()
        taken = sum(row.nbytes for row in (*rows, *paged))
        least = min(sum(sorted(s.slot_bytes for s in cut)[-2:]) for cut in needs.cuts)
        room = max(least, int(share * sum(s.slot_bytes for s in needs.cuts[0])))
        experts = needs.experts
        if experts:
            room += max(experts.least_bytes, int(share * experts.room_bytes))
        plan = plan_memory(taken + room, rows, needs.cuts, None, paged, experts=experts)
        return prepared.load(plan)
    finally:
        prepared.close()


def one_by_one(model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits after every token, each committed alone: float32 [n_tokens, n_vocab]."""
    rows = []
    for token in tokens:
        tree = TokenTree(token)
        rows.append(model.evaluate(tree, [ROOT])[0])
        model.commit(tree, [ROOT])
    return np.stack(rows)


def replace_reads(model: Any, replacement: Callable[..., Callable[..., int]]) -> None:
    """Wrap the read function of all stores of a paged model by `replacement`."""
    stores = model._weights.stores
    assert stores
    for store in stores:
        reads = getattr(store, "_reads", store)  # a cache of experts has them apart
        reads._reader.read = replacement(reads._reader.read)


class PagingContract:
    def test_a_read_error_reaches_the_caller_and_the_model_works_afterwards(
        self, paged: LanguageModel
    ) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:4]
        expected = one_by_one(paged, tokens)
        paged.truncate(0)
        failing = threading.Event()
        failing.set()

        def unplugged(good: Callable[..., int]) -> Callable[..., int]:
            def read(*arguments: object) -> int:
                if failing.is_set():
                    raise WeightReadError("the cable was pulled")
                return good(*arguments)

            return read

        replace_reads(paged, unplugged)
        with pytest.raises(WeightReadError, match="cable"):
            one_by_one(paged, 3 * tokens)  # the ring may hold a pass already
        failing.clear()
        paged.truncate(0)
        assert np.array_equal(one_by_one(paged, tokens), expected)

    def test_cancelling_a_pass_that_waits_for_reads_ends_it(self, paged: LanguageModel) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:24]
        released = threading.Event()

        def hanging(good: Callable[..., int]) -> Callable[..., int]:
            def read(*arguments: object) -> int:
                released.wait(10)
                return good(*arguments)

            return read

        replace_reads(paged, hanging)
        timer = threading.Timer(0.2, paged.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            one_by_one(paged, tokens)
        released.set()
        assert paged.n_committed < 24

    def test_passes_report_the_bytes_that_are_read_for_them(self, paged: LanguageModel) -> None:
        """Bytes that are read ahead between two calls count for the second."""
        reported = 0
        for token in paged.vocabulary.encode(TEXT)[:4]:
            one_by_one(paged, [token])
            reported += paged.last_report.bytes_read
        assert reported >= 4 * paged.paging().streamed_bytes
        assert reported <= paged.paging().bytes_read

    def test_closing_leaves_no_thread(self, paged: LanguageModel) -> None:
        paged.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("edgespec")]
