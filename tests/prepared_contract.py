"""Contract tests of prepared models: `needs` is constant, and its rows cover the memory used.

A suite inherits from `PreparedContract`, or from `PagedPreparedContract` if its models can be
paged, and defines the fixture `prepare`: a function that prepares a target of a few megabytes at
least, for several nodes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.memory import cgroups
from edgespec.memory.budget import LOADING, MemoryPlan, loaded_last, plan_memory
from edgespec.memory.division import HEADROOM_BYTES
from edgespec.memory.heap import trim_heap
from edgespec.memory.process import process_rss_bytes
from edgespec.ports import LanguageModel
from edgespec.registry import PreparedModel
from one_tree import line
from port_calls import evaluate, prefill
from port_contract import TEXT

_NEW_PROCESS = "EDGESPEC_TEST_IN_A_NEW_PROCESS"
"""Environment variable with the test that a new process runs."""
_TIME_LIMIT_S = 300


def passed_in_a_new_process(request: pytest.FixtureRequest) -> bool:
    """Run the calling test again in a new process: True if it passed, fails if it failed.

    False in the new process, where the test goes on.
    """
    node = request.node.nodeid
    if os.environ.get(_NEW_PROCESS) == node:
        return False
    config = request.config
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", node],
        cwd=config.rootpath,
        env={**os.environ, _NEW_PROCESS: node},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIME_LIMIT_S,
    )
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True


def work_hard(model: LanguageModel) -> None:
    """Fill the context except for a tree, and evaluate the largest tree."""
    n_nodes = model.info.max_nodes
    tokens = (100 * model.vocabulary.encode(100 * TEXT))[: model.info.n_ctx]
    prefill(model, tokens[:-n_nodes])
    evaluate(model, *line(tokens[-n_nodes:]))


def _own_bytes() -> int:
    """Bytes of resident memory, without pages of files on Linux."""
    if sys.platform != "linux":
        return process_rss_bytes()
    status = cgroups.table(Path("/proc/self/status"))
    return status["RssAnon"] + status["RssShmem"]


class PreparedContract:
    @pytest.fixture
    def prepare(self) -> Callable[[], PreparedModel]:
        raise NotImplementedError("a runtime's test class says how to prepare its model")

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls) -> Iterator[list[PreparedModel]]:
        """The prepared model of all tests, once it is there."""
        kept: list[PreparedModel] = []
        yield kept
        for prepared in kept:
            prepared.close()

    @pytest.fixture
    def prepared(
        self, prepare: Callable[[], PreparedModel], kept: list[PreparedModel]
    ) -> PreparedModel:
        if not kept:
            kept.append(prepare())
        return kept[0]

    def taken_by(self, prepare: Callable[[], PreparedModel], plan: MemoryPlan | None) -> int:
        """Bytes by which the process grows when the model loads and works hard, without pages of
        files where the system counts them apart: pages of libraries, which no row names, depend on
        what ran before. Call it in a new process, in which the allocator has no free memory of
        earlier work."""
        prepared = prepare()
        gc.collect()
        trim_heap()
        before = _own_bytes()
        model = prepared.load(plan)
        work_hard(model)
        taken = _own_bytes() - before
        model.close()
        prepared.close()
        return taken

    def test_what_it_needs_is_one_answer(self, prepared: PreparedModel) -> None:
        assert prepared.needs() == prepared.needs()

    def test_its_rows_name_their_owner(self, prepared: PreparedModel) -> None:
        needs = prepared.needs()
        rows = (*needs.common_rows(), *needs.paged_rows(), *(needs.resident or ()))
        assert {row.owner for row in rows} == {"target"}

    def test_larger_batches_come_first(self, prepared: PreparedModel) -> None:
        taken = [batch.nbytes for batch in prepared.needs().batches]
        assert taken == sorted(taken, reverse=True)

    @pytest.mark.slow
    def test_a_resident_model_takes_no_more_than_its_rows(
        self, request: pytest.FixtureRequest, prepare: Callable[[], PreparedModel]
    ) -> None:
        if passed_in_a_new_process(request):
            return
        needs = request.getfixturevalue("prepared").needs()
        rows = [row for row in needs.resident or () if row.what != LOADING]
        planned = sum(row.nbytes for row in (*needs.common_rows(), *rows))
        assert self.taken_by(prepare, None) <= planned + HEADROOM_BYTES


class PagedPreparedContract(PreparedContract):
    """The contract of prepared models that can be paged."""

    def test_every_cut_holds_the_same_weights_in_more_parts_than_the_one_before(
        self, prepared: PreparedModel
    ) -> None:
        cuts = prepared.needs().cuts
        assert len({sum(segment.nbytes for segment in cut) for cut in cuts}) == 1
        sizes = [len(cut) for cut in cuts]
        assert sizes == sorted(set(sizes))

    @pytest.mark.slow
    def test_a_paged_model_takes_no_more_than_its_rows(
        self, request: pytest.FixtureRequest, prepare: Callable[[], PreparedModel]
    ) -> None:
        if passed_in_a_new_process(request):
            return
        needs = request.getfixturevalue("prepared").needs()
        rows, paged = needs.common_rows(), needs.paged_rows()
        weights_bytes = sum(segment.slot_bytes for segment in needs.cuts[0])
        budget_bytes = sum(row.nbytes for row in (*rows, *loaded_last(paged, rows)))
        budget_bytes += weights_bytes // 2
        plan = plan_memory(budget_bytes, rows, needs.cuts, None, paged)
        assert plan.streamed_bytes > 0
        assert self.taken_by(prepare, plan) <= plan.planned_bytes + HEADROOM_BYTES
