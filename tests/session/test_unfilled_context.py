"""A paged model pins more weights while its context is not full, within its budget, and writes the
same text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.models.embedded import embedded_pair
from edgespec.paging import pager
from edgespec_runtimes.gguf.context import cell_order
from edgespec_runtimes.kit import segmented
from edgespec_runtimes.kit.segmented import ContextSize, SegmentedWeights
from gguf_files import U32, tiny_llama
from session_cases import at_once
from zoo_files import write_model
from zoo_species import Species

N_CTX = 2048
PROGRAM = """
import json, sys
import edgespec
from edgespec.memory.cgroups import table
from pathlib import Path

def peak():
    return table(Path("/proc/self/status"))["VmHWM"]

def load(budget):
    settings = edgespec.LoadSettings(
        model=sys.argv[1], memory_budget=budget, ctx_size=2048, threads=1
    )
    settings = settings.model_copy(update={"batch_size": json.loads(sys.argv[3])})
    return edgespec.load(settings, edgespec.EngineSettings(remember=False))

drawn = edgespec.SamplingParams(temperature=1.0, seed=3)
prompts = ["hello", "the rain in the inn " * 90, "hello"]
said = {}
if sys.argv[2] == "whole":
    with load("2GiB") as session:
        said["texts"] = [session.generate(p, drawn, max_tokens=24).tokens for p in prompts]
        said["smallest"] = session.plan.smallest_bytes
else:
    budget = int(sys.argv[2])
    with load(budget) as session:
        said["planned"] = session.plan.pinned_bytes
        said["texts"], said["pinned"], said["passes"] = [], [], []
        for prompt in prompts:
            result = session.generate(prompt, drawn, max_tokens=24)
            said["texts"].append(result.tokens)
            passes = result.paging.passes - result.speculation.target_passes
            said["passes"].append((len(result.prompt_tokens), passes))
            said["pinned"].append(session.budget.pinned_bytes)
        moved = session.set_memory_budget(budget - 4 * 2**20)
        said["moved"] = session.budget.pinned_bytes - moved.pinned_bytes
        said["last"] = session.generate("hello", drawn, max_tokens=24).tokens
    said["ratio"] = peak() / budget
print(json.dumps(said))
"""


def child(path: Path, budget: str, batch_size: int | None = 64) -> dict[str, object]:
    command = [sys.executable, "-c", PROGRAM, str(path), budget, json.dumps(batch_size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_weights_have_what_the_context_does_not_use_yet(tmp_path: Path) -> None:
    model = tiny_llama(embedding=512, layers=8, heads=8, kv_heads=8, head_size=64, ffn=1024)
    model.metadata["llama.context_length"] = (U32, N_CTX)
    path = tmp_path / "wide.gguf"
    model.write(path)
    whole = child(path, "whole")
    paged = child(path, str(whole["smallest"]))
    assert paged["texts"] == whole["texts"]
    assert paged["last"] == whole["texts"][0]  # type: ignore[index]
    at_first, when_filled, again = paged["pinned"]  # type: ignore[misc]
    planned = paged["planned"]
    assert at_first - planned > 12 << 20  # of 24 MiB of weights
    assert when_filled < at_first == again
    assert paged["moved"] > 0  # type: ignore[operator]
    assert paged["ratio"] <= 1  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_a_prompt_is_read_in_passes_over_512_tokens(tmp_path: Path) -> None:
    """Weights have the memory for so many rows while no prompt is read."""
    model = tiny_llama(embedding=512, layers=8, heads=8, kv_heads=8, head_size=64, ffn=2048)
    model.metadata["llama.context_length"] = (U32, N_CTX)
    path = model.write(tmp_path / "wide.gguf")
    whole = child(path, "whole", None)
    paged = child(path, str(int(whole["smallest"]) + (20 << 20)), None)  # type: ignore[call-overload]
    print(whole, paged)
    assert paged["texts"] == whole["texts"]
    assert [passes for _, passes in paged["passes"]] == [-(-n // 512) for n, _ in paged["passes"]]  # type: ignore[attr-defined]
    assert paged["ratio"] <= 1  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_texts_stay_while_memory_goes_back_and_forth(
    n_parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly every pass moves some."""
    files = embedded_pair()
    rules = edgespec.EngineSettings(
        remember=False, lookup=True, step_aside=False, draft_max=6, fallback="fixed"
    )
    load = edgespec.LoadSettings(
        model=files.target, draft=files.draft, memory_budget="2GiB", ctx_size=256, threads=1
    )
    drawn = edgespec.SamplingParams(temperature=0.9, seed=5)
    prompts = ["def add(a, b):", "the tea " * 60, "hello", "class Tree:\n" * 9, "def add(a"]
    prompts += [f"{prompt} and so" for prompt in prompts]

    def written(session: edgespec.Session) -> list[tuple[int, ...]]:
        return [
            result.tokens for result in at_once(session, prompts, sampling=drawn, max_tokens=16)
        ]

    with edgespec.load(load, rules) as session:
        expected = [session.generate(prompt, drawn, max_tokens=16).tokens for prompt in prompts]
    monkeypatch.setattr(segmented, "LEAST_STEP_CELLS", 4)
    monkeypatch.setattr(segmented, "N_STEPS", 64)
    monkeypatch.setattr(cell_order, "SLACK_CELLS", 0)
    load = load.model_copy(update={"n_parallel": n_parallel})
    budget = edgespec.plan(load, rules).smallest_bytes - (4 << 20)
    with edgespec.load(load.model_copy(update={"memory_budget": budget}), rules) as session:
        assert session.plan.paged
        for _ in range(2):
            assert written(session) == expected


RESIDENT = """
import sys
import edgespec
from edgespec.memory import process

settings = edgespec.LoadSettings(model=sys.argv[1], memory_budget="2GiB", ctx_size=32768)
with edgespec.load(settings, edgespec.EngineSettings(remember=False)) as session:
    cache = sum(row.nbytes for row in session.plan.rows if row.what.startswith("KV cache"))
    assert not session.plan.paged
    session.generate("hello", max_tokens=4)
    before = process.process_rss_bytes()
    session.generate([5] * 2048, max_tokens=1)
    print(cache, process.process_rss_bytes() - before, session.plan.planned_bytes - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_a_model_in_memory_touches_only_the_cells_that_texts_use(tmp_path: Path) -> None:
    model = tiny_llama(layers=4, heads=8, kv_heads=8, head_size=64)
    model.metadata["llama.context_length"] = (U32, 32768)
    command = [sys.executable, "-c", RESIDENT, str(model.write(tmp_path / "m.gguf"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cache_bytes, taken_bytes, unused_bytes = map(int, done.stdout.split())
    assert unused_bytes > 0.9 * cache_bytes
    assert cache_bytes / 20 < taken_bytes < cache_bytes / 8


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_a_context_in_columns_lends_nothing(tmp_path: Path) -> None:
    """llama.cpp computes Grok without flash attention whatever it is asked for, and keeps values
    in columns: pages of free rows had values of the texts."""
    path = write_model(tmp_path / "grok.gguf", Species("grok", True))
    load = edgespec.LoadSettings(model=path, memory_budget="2GiB", ctx_size=256, threads=1)
    budget = edgespec.plan(load).smallest_bytes
    with edgespec.load(load.model_copy(update={"memory_budget": budget})) as session:
        weights = session._models.target._weights
        assert weights is not None
        assert weights.context == ContextSize()


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")
def test_nothing_is_read_before_the_pass_that_fills_a_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read that failed there left the cells of other texts in disorder, and none could be
    stopped."""
    monkeypatch.setattr(segmented, "LEAST_STEP_CELLS", 4)
    monkeypatch.setattr(segmented, "N_STEPS", 64)
    monkeypatch.setattr(cell_order, "SLACK_CELLS", 0)
    files = embedded_pair()
    load = edgespec.LoadSettings(model=files.target, memory_budget="2GiB", ctx_size=256, threads=1)
    budget = edgespec.plan(load).smallest_bytes - (4 << 20)
    read, fill = pager.read_segment, SegmentedWeights.fill_context
    seen, filling = list[bool](), list[bool]()

    def filled(self: Any, n_cells: int) -> None:
        filling.append(True)
        fill(self, n_cells)
        filling.clear()

    def noted(reader: Any, segment: Any, memory: Any, *rest: Any) -> int:
        seen.append(bool(filling))
        return read(reader, segment, memory, *rest)

    monkeypatch.setattr(SegmentedWeights, "fill_context", filled)
    with edgespec.load(load.model_copy(update={"memory_budget": budget})) as session:
        monkeypatch.setattr(pager, "read_segment", noted)
        for prompt in ("hello", "the tea " * 30, "hello", "the tea " * 60):
            session.generate(prompt, max_tokens=2)
    assert seen
    assert not any(seen)


def test_a_pass_is_stopped_while_weights_are_read_into_the_contexts_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = embedded_pair()
    load = edgespec.LoadSettings(model=files.target, memory_budget="2GiB", ctx_size=512, threads=1)
    budget = edgespec.plan(load).smallest_bytes - (4 << 20)
    prompt, read, stopped_at = "def add(a, b):", pager.read_segment, list[str]()
    with edgespec.load(load) as session:
        expected = session.generate(prompt, max_tokens=12).tokens
    with edgespec.load(load.model_copy(update={"memory_budget": budget})) as session:
        target, planned = session._budget._target, session.budget.pinned_bytes

        def read_and_stop(reader: Any, segment: Any, memory: Any, *rest: Any) -> int:
            if memory.nbytes == segment.slot_bytes and not stopped_at:  # to be pinned
                stopped_at.append(segment.name)
                target.cancel()
            return read(reader, segment, memory, *rest)

        monkeypatch.setattr(pager, "read_segment", read_and_stop)
        with session.stream(prompt, max_tokens=12) as generation:
            tokens = [event.token for event in generation]  # nobody cancelled the text: it goes on
        assert tuple(tokens) == expected
        assert stopped_at
        assert session.generate(prompt, max_tokens=12).tokens == expected
        assert session.budget.pinned_bytes > planned


@pytest.mark.parametrize(("architecture", "is_lent"), [("dbrx", True), ("grok", False)])
def test_a_plan_knows_that_grok_is_computed_without(
    architecture: str, is_lent: bool, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.gguf", Species(architecture, True))
    plan = edgespec.plan(edgespec.LoadSettings(model=model, memory_budget="1GiB"))
    are_lent = [row.is_lent for row in plan.rows if row.what.startswith("KV cache")]
    assert are_lent == [is_lent]


def test_a_shorter_context_is_taken_where_the_default_does_not_fit(tmp_path: Path) -> None:
    """A budget of a few MiB too little was an error."""
    model = tiny_llama(embedding=512, layers=8, heads=8, kv_heads=8, head_size=64, ffn=1024)
    model.metadata["llama.context_length"] = (U32, 8192)
    path = tmp_path / "wide.gguf"
    model.write(path)
    whole = edgespec.plan(path, memory_budget="2GiB")
    assert whole.ctx_size == 8192
    with pytest.raises(edgespec.BudgetError) as refused:
        edgespec.plan(path, memory_budget="1MiB")
    least = refused.value.smallest_bytes
    with pytest.raises(edgespec.BudgetError) as longer:
        edgespec.plan(path, memory_budget="1MiB", ctx_size=4096)
    assert least is not None and longer.value.smallest_bytes is not None
    assert longer.value.smallest_bytes - least > 40 << 20  # 16 KiB a token
    short = edgespec.plan(path, memory_budget=least + (4 << 20))
    assert short.ctx_size == 1024
    assert any("4,096 do not fit" in note or "2,048 do not fit" in note for note in short.notes)
