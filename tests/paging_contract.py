"""Contract tests of runtimes that page weights, and helpers to load a paged model.

A suite inherits from `PagingContract` and defines the fixture `paged`: a model with some of its
weights streamed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

from edgespec.errors import Cancelled, WeightReadError
from edgespec.memory.budget import MemoryPlan, divided, fixed_rows, loaded_last, plan_memory
from edgespec.memory.pinning import MIN_RING_SLOTS
from edgespec.ports import LanguageModel, Progress
from edgespec.registry import PreparedModel
from one_tree import ROOT, OneTree
from port_calls import evaluate
from port_contract import TEXT


def load_paged(
    prepared: PreparedModel, share: float = 0.5, progress: Progress | None = None
) -> LanguageModel:
    """A model with memory for a share of the streamable weights; share 0 is the smallest budget.

    Closes `prepared`.
    """
    with closing(prepared):
        needs = prepared.needs()
        rows, paged = needs.common_rows(), needs.paged_rows()
        taken = sum(row.nbytes for row in (*rows, *loaded_last(paged, rows)))
        least = min(sum(sorted(s.slot_bytes for s in cut)[-2:]) for cut in needs.cuts)
        room = max(least, int(share * sum(s.slot_bytes for s in needs.cuts[0])))
        experts = needs.experts
        if experts:
            room += max(experts.least_bytes, int(share * experts.room_bytes))
        plan = plan_memory(taken + room, rows, needs.cuts, None, paged, experts=experts)
        return prepared.load(plan, progress)


def load_either(prepared: PreparedModel, is_paged: bool = False) -> LanguageModel:
    """A model with half of its weights streamed, or with all in memory. Closes `prepared`."""
    if is_paged:
        return load_paged(prepared)
    with closing(prepared):
        return prepared.load(None)


def one_by_one(model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
    """Logits after every token, each committed alone: float32 [n_tokens, n_vocab]."""
    rows = []
    for token in tokens:
        tree = OneTree(token)
        rows.append(evaluate(model, tree, [ROOT])[0])
        model.commit(tree, [ROOT])
    return np.stack(rows)


def replace_reads(model: Any, replacement: Callable[..., Callable[..., int]]) -> None:
    """Wrap the read function of all stores of a paged model by `replacement`."""
    stores = model._weights.stores
    assert stores
    for store in stores:
        reads = getattr(store, "_reads", store)  # a cache of experts has them apart
        reads._reader.read = replacement(reads._reader.read)


def with_room(model: Any, share: float) -> MemoryPlan:
    """The model's plan with room for a share of its weights; 0 is that of its smallest ring."""
    plan = model._weights._plan
    taken = sum(row.nbytes for row in fixed_rows(plan))
    slots = [segment.slot_bytes for segment in plan.segments]
    least = sum(sorted(slots)[-MIN_RING_SLOTS:]) + (plan.experts.least_bytes if plan.experts else 0)
    whole = sum(slots) + (plan.experts.room_bytes if plan.experts else 0)
    return divided(plan, taken + max(least, int(share * whole)))


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
        with pytest.raises(WeightReadError):
            one_by_one(paged, 3 * tokens)  # the ring may hold a pass already
        failing.clear()
        paged.truncate(0)
        assert np.array_equal(one_by_one(paged, tokens), expected)

    def test_cancelling_a_pass_that_waits_for_reads_ends_it(self, paged: LanguageModel) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:24]
        released = threading.Event()

        def hanging(good: Callable[..., int]) -> Callable[..., int]:
            def read(*arguments: object) -> int:
                released.wait(60)
                return good(*arguments)

            return read

        def cancel() -> None:
            while not released.wait(0.2):  # a call between two passes cancels none
                paged.cancel()

        replace_reads(paged, hanging)
        threading.Thread(target=cancel).start()
        try:
            with pytest.raises(Cancelled):
                one_by_one(paged, tokens)
        finally:
            released.set()
        assert paged.committed_of(0) < 24

    def test_passes_report_the_bytes_that_are_read_for_them(self, paged: LanguageModel) -> None:
        """Bytes that are read ahead between two calls count for the second."""
        reported = 0
        for token in paged.vocabulary.encode(TEXT)[:4]:
            one_by_one(paged, [token])
            reported += paged.last_report.bytes_read
        assert reported >= 4 * paged.paging().streamed_bytes
        assert reported <= paged.paging().bytes_read

    def test_what_is_pinned_may_change_between_passes(self, paged: LanguageModel) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:8]
        expected = one_by_one(paged, tokens)
        paged.truncate(0)
        dice = random.Random(1)
        for token, logits in zip(tokens, expected, strict=True):
            applied = paged.divide(with_room(paged, dice.choice((0.0, 0.3, 0.7, 1.0))))
            if dice.random() < 0.5:
                paged.settle()
                assert applied.is_set()
            assert np.array_equal(one_by_one(paged, [token])[0], logits)
            assert applied.is_set()

    def test_what_is_wanted_is_pinned_after_some_passes(self, paged: LanguageModel) -> None:
        paged.divide(with_room(paged, 1))
        for token in paged.vocabulary.encode(2 * TEXT)[:12]:
            one_by_one(paged, [token])
        assert paged.paging().streamed_bytes == 0

    def test_a_change_that_cannot_read_is_tried_again(self, paged: LanguageModel) -> None:
        tokens = paged.vocabulary.encode(2 * TEXT)[:2]
        expected = one_by_one(paged, tokens)
        paged.truncate(0)
        paged.divide(with_room(paged, 0))
        one_by_one(paged, tokens[:1])
        paged.divide(with_room(paged, 1))
        good = paged._weights._reader.read

        def broken(*arguments: object) -> int:
            raise WeightReadError("the cable was pulled")

        paged._weights._reader.read = broken
        with suppress(WeightReadError):  # onnxruntime may map what it packs
            one_by_one(paged, tokens[1:])
            paged.truncate(1)
        paged._weights._reader.read = good
        assert np.array_equal(one_by_one(paged, tokens[1:])[0], expected[1])

    def test_closing_leaves_no_thread(self, paged: LanguageModel) -> None:
        paged.close()
        names = {t.name for t in threading.enumerate() if t.name.startswith("edgespec")}
        # those of other modules: engines, and calls to servers that were lost, which never end
        assert not names - {"edgespec-engine", "edgespec-servers"}
