"""`Session.set_memory_budget`: memory is given back and taken again while texts are written."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import edgespec
from edgespec.errors import BudgetError, UsageError, WeightReadError
from edgespec.grammar.specification import regular_expression
from edgespec.memory import process
from edgespec.models.embedded import embedded_pair
from edgespec.paging.reader import DirectReader
from edgespec.session import session_budget
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings, SamplingParams
from gguf_files import tiny_llama
from sentences import refuses
from session_cases import until

PROMPT = "def binary_search(items, wanted):\n"
DRAWN = SamplingParams(temperature=0.8, seed=7)
RULES = edgespec.EngineSettings(remember=False, fallback="fixed", draft_max=4, step_aside=False)
GROWN = """
import sys
import edgespec
from edgespec.memory.process import process_rss_bytes

load = edgespec.LoadSettings(
    model=sys.argv[1], memory_budget="1GiB", adjustable_budget=True, ctx_size=64, threads=1
)
with edgespec.load(load, edgespec.EngineSettings(remember=False)) as session:
    drawn = edgespec.SamplingParams(temperature=1.0, logit_bias={0: -1e4})
    expected = session.generate("text", drawn, max_tokens=14).tokens
    smallest, whole = session.budget.smallest_bytes, session.plan.planned_bytes
    half = (smallest + whole) // 2
    tokens, most = [], 0
    with session.stream("text", drawn, max_tokens=14) as generation:
        for event in generation:
            tokens.append(event.token)
            if len(tokens) == 5:
                session.set_memory_budget(half)
                print(whole, half, flush=True)
                sys.stdin.readline()
            elif len(tokens) > 5:
                most = max(most, process_rss_bytes())
    print(tuple(tokens) == expected, most, flush=True)
    sys.stdin.readline()
    session.set_memory_budget("1GiB")
    for _ in range(20):  # passes take what is read by then: on a busy machine ten are too few
        session.generate("text", drawn, max_tokens=10)
        if not session.budget.streamed_bytes:
            break
    print(session.budget.streamed_bytes, flush=True)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    files = embedded_pair()
    load = LoadSettings(
        model=files.target,
        draft=files.draft,
        memory_budget="2GiB",
        adjustable_budget=True,
        n_parallel=2,
        ctx_size=256,  # so small a context lends weights nothing
    )
    with edgespec.load(load, RULES) as session:
        yield session


@pytest.mark.slow
def test_memory_is_given_back_in_the_middle_of_a_text(tmp_path: Path) -> None:
    """Resident memory as another process sees it."""
    model = tiny_llama(embedding=1024, layers=4, ffn=2048, hollow=True)
    path = tmp_path / "hollow.gguf"
    model.write_hollow(path)
    child = subprocess.Popen(
        [sys.executable, "-c", GROWN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin and child.stdout
        whole, half = map(int, child.stdout.readline().split())
        assert psutil.Process(child.pid).memory_info().rss <= half < whole
        child.stdin.write("\n")
        child.stdin.flush()
        is_same, most = child.stdout.readline().split()
        assert (is_same, int(most) <= half) == ("True", True)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "0\n"
    assert child.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("n_changes", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_many_changes_in_a_row_leave_the_text(session: Session, n_changes: int) -> None:
    expected = session.generate(PROMPT, DRAWN, max_tokens=n_changes).tokens
    smallest, whole = session.budget.smallest_bytes, session.plan.planned_bytes
    dice = random.Random(3)
    tokens = []
    with session.stream(PROMPT, DRAWN, max_tokens=n_changes) as generation:
        for event in generation:
            tokens.append(event.token)
            plan = session.set_memory_budget(dice.randint(smallest, whole))
            assert plan.planned_bytes <= plan.budget_bytes == session.plan.budget_bytes
    assert tuple(tokens) == expected
    assert session.generate(PROMPT, DRAWN, max_tokens=n_changes).tokens == expected


@pytest.mark.slow
def test_changes_from_another_thread_do_not_wait_for_the_texts_end(session: Session) -> None:
    smallest, whole = session.budget.smallest_bytes, session.plan.planned_bytes
    expected = session.generate(PROMPT, max_tokens=60).tokens
    results: list[tuple[int, ...]] = []
    writing = threading.Thread(
        target=lambda: results.append(session.generate(PROMPT, max_tokens=60).tokens)
    )
    writing.start()
    while writing.is_alive():
        session.set_memory_budget(smallest)
        session.set_memory_budget(whole)
    assert results == [expected]


def test_a_callback_of_the_session_may_change_its_budget(session: Session) -> None:
    budgets: list[int] = []

    def progress(what: str, share: float) -> None:
        budgets.append(session.set_memory_budget("1GiB").budget_bytes)

    session.generate("another " * 40, max_tokens=1, progress=progress)
    assert {*budgets} == {1 << 30}


def test_a_budget_below_the_smallest_is_refused_and_changes_nothing(session: Session) -> None:
    before = session.plan
    with refuses(BudgetError, figures=False) as refused:
        session.set_memory_budget("1MiB")
    assert refused.value.exit_code == 4
    assert refused.value.smallest_bytes == session.budget.smallest_bytes
    assert session.plan == before


def test_a_resident_model_keeps_its_memory_and_says_so() -> None:
    with edgespec.load(LoadSettings(model=embedded_pair().target, memory_budget="2GiB")) as session:
        assert session.set_memory_budget("1GiB").budget_bytes == 1 << 30
        with refuses(BudgetError, figures=False):
            session.set_memory_budget(session.plan.planned_bytes - 1)
        with refuses(UsageError):
            session.set_memory_budget("auto")
        assert session.budget.pinned_bytes >= session.target.size_bytes // 2 > 0


def test_weights_that_cannot_be_read_again_fail_the_change(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.set_memory_budget(session.budget.smallest_bytes)
    weights = session._models.target._weights
    good = weights._reader.read

    def broken(*arguments: object) -> int:
        raise WeightReadError("the cable was pulled")

    monkeypatch.setattr(weights._reader, "read", broken)
    with pytest.raises(WeightReadError):
        session.set_memory_budget("1GiB")
    monkeypatch.setattr(weights._reader, "read", good)
    assert session.set_memory_budget("1GiB").budget_bytes == 1 << 30


def test_a_budget_of_auto_follows_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [900 << 20]
    monkeypatch.setattr(session_budget, "INTERVAL_S", 0.001)
    monkeypatch.setattr(process, "auto_budget", lambda: free[0])
    load = LoadSettings(model=embedded_pair().target, memory_budget="auto:500MiB-2GiB")
    with edgespec.load(load, RULES) as session:
        assert session.budget.follows
        pause = threading.Event()
        while session.plan.budget_bytes != free[0]:
            pause.wait(0.001)
    assert not [t for t in threading.enumerate() if t.name == "edgespec-budget" and t.is_alive()]


def test_a_budget_that_is_given_stays_though_auto_affords_more_until_auto_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had grown again within seconds."""
    free = session_budget.FreeMemory
    asked = threading.Event()
    monkeypatch.setattr(session_budget, "INTERVAL_S", 0.001)
    monkeypatch.setattr(free, "next_budget", lambda *_: 900 << 20 if asked.is_set() else None)
    load = LoadSettings(model=embedded_pair().target, memory_budget="auto:500MiB-2GiB")
    with edgespec.load(load, RULES) as session:
        session.set_memory_budget(700 << 20)
        asked.set()
        threading.Event().wait(0.05)
        assert session.plan.budget_bytes == 700 << 20
        assert not session.budget.follows
        session.set_memory_budget("auto:500MiB-2GiB")
        assert session.budget.follows
        while session.plan.budget_bytes != 900 << 20:
            threading.Event().wait(0.001)


def test_a_budget_that_follows_shrinks_to_what_works_with_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stayed as it was where less was free. A budget that is none changes nothing."""
    free = [400 << 20]
    monkeypatch.setattr(session_budget, "INTERVAL_S", 0.001)
    monkeypatch.setattr(process, "auto_budget", lambda: free[0])
    load = LoadSettings(model=embedded_pair().target, memory_budget="auto:10MiB-4GiB", ctx_size=512)
    with edgespec.load(load, RULES) as session:
        session.constraint(regular_expression("[a-z]+"))
        with pytest.raises(UsageError):
            session.set_memory_budget("auto:1GiB-x")
        free[0] = 1 << 20
        until(lambda: session.plan.budget_bytes == session.budget.smallest_bytes)


def test_weights_give_grammars_their_memory_within_the_same_budget() -> None:
    pytest.importorskip("onnxruntime")
    load = LoadSettings(
        model="edgespec-target-onnx-fp16",
        adjustable_budget=True,
        ctx_size=512,
        memory_budget="1GiB",
    )
    least = edgespec.plan(load).smallest_bytes
    load = load.model_copy(update={"memory_budget": least + (9 << 20)})
    with edgespec.load(load, RULES) as session:
        session.constraint(regular_expression("[a-z]+"))
        assert session.budget.pinned_bytes == session.plan.pinned_bytes


def test_what_requests_take_may_be_more_than_two_gibibytes() -> None:
    load = LoadSettings(model="embedded").model_copy(update={"reserve": 3 << 30})
    assert load.without_draft().reserve == 3 << 30


def test_a_file_that_takes_the_name_of_an_open_one_changes_no_text(tmp_path: Path) -> None:
    """A table of rows was opened by name when the budget fell: another model's."""
    model, other = (tiny_llama(seed=n).write(tmp_path / f"{n}.gguf") for n in (0, 1))
    load = LoadSettings(model=model, memory_budget="1GiB", adjustable_budget=True)
    with edgespec.load(load, edgespec.EngineSettings(remember=False)) as session:
        expected = session.generate("text", max_tokens=8).tokens
        other.replace(model)
        session.set_memory_budget(session.budget.smallest_bytes)
        assert session.generate("text", max_tokens=8).tokens == expected


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Session]:
    """At its smallest budget, with more weights than a plan may be wrong by."""
    model = tiny_llama(embedding=256, ffn=8192, layers=4, n_vocab=1000)
    load = LoadSettings(
        model=model.write(tmp_path / "m.gguf"), memory_budget="1GiB", adjustable_budget=True
    )
    with edgespec.load(load, edgespec.EngineSettings(remember=False)) as session:
        session.set_memory_budget(session.budget.smallest_bytes)
        yield session


def test_a_budget_whose_weights_could_not_be_read_is_the_one_that_is_told(wide: Session) -> None:
    def fails(*_: object) -> None:
        raise WeightReadError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectReader, "read", fails)
        with pytest.raises(WeightReadError):
            wide.set_memory_budget("1GiB")
    wide.generate("text", max_tokens=2)
    assert wide.paging.pinned_bytes == wide.plan.pinned_bytes


@pytest.mark.parametrize("size", ["1GiB", "auto:2GiB-1GiB"])
def test_a_running_session_refuses_what_loading_refuses(
    size: str, wide: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wide.plan.budget_bytes
    monkeypatch.setattr(process, "total_bytes", lambda: before)
    with pytest.raises((BudgetError, UsageError), match=r"machine has|smaller size"):
        wide.set_memory_budget(size)
    assert wide.plan.budget_bytes == before
