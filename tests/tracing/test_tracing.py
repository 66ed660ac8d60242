"""Traces of a generation: spans of the engine and the pager, and the command line's flag."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli import command_line
from edgespec.engine import engine as engine_module
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.memory.budget import plan_memory
from edgespec.models.embedded import embedded_pair
from edgespec.paging.pager import WeightPager
from edgespec.paging.reader import BLOCK_BYTES, DirectReader, Extent, Segment
from edgespec.tracing.spans import Track
from edgespec.tracing.trace_file import TraceFile
from edgespec.values import GenerationResult, PagingStats
from engine_cases import GREEDY, N_VOCAB, PROMPT, finish, waits_for_steps_of
from engine_cases import AskedEngine as Engine
from fake_model import FakeModel, blend, random_language
from one_tree import ROOT, OneTree
from port_calls import evaluate, prefill
from port_models import model_request
from sentences import refuses
from traces import Event, KeptFile, read, spans, trace_in_memory

ROUND = ("round", "verify")


def traced(
    target: FakeModel, draft: FakeModel | None = None, **rules: Any
) -> tuple[GenerationResult, list[Event]]:
    """A generation of 20 tokens and its trace."""
    trace, file = trace_in_memory()
    settings = EngineSettings(step_aside=False, **rules)
    with trace, Engine(target, draft, settings, trace=trace) as engine:
        result = finish(engine.generate(PROMPT, GREEDY, 20))
    return result, read(file.content)


def pair(**options: Any) -> tuple[FakeModel, FakeModel]:
    """A target, and a draft that is right most of the time."""
    ours, theirs = random_language(1, N_VOCAB), random_language(2, N_VOCAB)
    return (
        FakeModel(ours, N_VOCAB, **options),
        FakeModel(blend(ours, theirs, 0.3), N_VOCAB),
    )


def test_every_round_has_its_steps():
    result, events = traced(*pair())
    n_rounds = result.speculation.rounds
    assert [len(spans(events, name, Track.ENGINE)) for name in ROUND] == [n_rounds] * len(ROUND)
    assert len(spans(events, "prompt")) == len(spans(events, "generation")) == 1


def test_rounds_say_what_was_verified_and_what_stood():
    result, events = traced(*pair())
    told = [event["args"] for event in spans(events, "round")]
    assert [args["accepted"] for args in told] == list(result.speculation.accepted_lengths)
    assert sum(args["verified"] for args in told) == result.speculation.verified
    assert sum(args["drafted"] for args in told) == result.speculation.drafted
    assert sum(args["tokens"] for args in told) == len(result.tokens)


def test_drafting_beside_the_pass_has_a_track_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "LEAST_BESIDE", 0.0)
    target, draft = pair(stall_share=0.9)
    target.hook = waits_for_steps_of(draft, 2)
    result, events = traced(target, draft, no_overlap=False, lookup=False)
    beside = spans(events, "draft step", Track.BESIDE)
    assert result.speculation.provisional_drafted > 0
    assert sum(event["args"]["nodes"] for event in beside) == result.speculation.provisional_drafted
    passes = spans(events, "verify", Track.ENGINE)
    assert all(any(p["ts"] <= s["ts"] <= p["ts"] + p["dur"] for p in passes) for s in beside)


def test_a_disk_that_fills_up_does_not_change_the_text():
    expected = traced(*pair())[0].tokens
    file = KeptFile()
    trace = TraceFile(lambda: file, Path("trace.json"))
    file.room = len(file.content) + 2000
    with Engine(*pair(), EngineSettings(step_aside=False), trace=trace) as engine:
        assert finish(engine.generate(PROMPT, GREEDY, 20)).tokens == expected
    with refuses(EdgespecError):
        trace.close()


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[DirectReader]:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(8 * BLOCK_BYTES))
    with DirectReader([path]) as reader:
        yield reader


def segments(n: int) -> list[Segment]:
    return [Segment(f"s{i}", [Extent(0, i * BLOCK_BYTES, BLOCK_BYTES)]) for i in range(n)]


def test_reads_and_stalls_add_up_to_what_the_pager_counts(weights: DirectReader):
    trace, file = trace_in_memory()
    pager = WeightPager(segments(8), weights, 2 * BLOCK_BYTES, trace=trace)
    for _ in range(3):
        for i in range(8):
            pager.acquire(i)
            pager.release(i)
    pager.close()
    trace.close()
    events = read(file.content)
    reads, stalls = spans(events, "read", Track.STORAGE), spans(events, "stall", Track.TARGET)
    assert sum(event["args"]["bytes"] for event in reads) == pager.bytes_read
    n_reads = Counter(event["args"]["segment"] for event in reads)
    assert set(n_reads) == set(range(8)) and set(n_reads.values()) <= {3, 4}
    assert all(event["args"]["name"] == f"s{event['args']['segment']}" for event in reads)
    for before, after in itertools.pairwise(reads):
        assert before["ts"] + before["dur"] < after["ts"] + 1, "spans of a row follow each other"
    assert sum(event["dur"] for event in stalls) / 1e6 == pytest.approx(pager.stall_s, abs=1e-7)


@pytest.fixture(scope="module")
def paged() -> tuple[list[Event], PagingStats]:
    """A trace of four passes over the embedded target, half of which is pinned."""
    pytest.importorskip("llama_cpp")
    from edgespec_runtimes.gguf import runtime

    trace, file = trace_in_memory()
    wanted = {"ctx_size": 256, "max_nodes": 4, "batch_size": 128}  # memory stays where it is
    request = model_request(embedded_pair().target, **wanted, trace=trace)
    with trace, closing(runtime.prepare(request)) as prepared:
        needs = prepared.needs()
        rows, paged = needs.common_rows(), needs.paged_rows()
        weights_bytes = sum(segment.slot_bytes for segment in needs.cuts[0])
        budget = sum(row.nbytes for row in (*rows, *paged)) + weights_bytes // 2
        with closing(prepared.load(plan_memory(budget, rows, needs.cuts, None, paged))) as model:
            prefill(model, [1, 2, 3])
            for token in (4, 5, 6):
                tree = OneTree(token)
                evaluate(model, tree, [ROOT])
                model.commit(tree, [ROOT])
            stats = model.paging()
    return read(file.content), stats


def test_each_pass_computes_every_streamed_segment_once(paged: tuple[list[Event], PagingStats]):
    events, stats = paged
    computed = [event["args"]["segment"] for event in spans(events, "compute", Track.TARGET)]
    assert len(spans(events, "pass")) == stats.passes == 4
    assert computed == 4 * list(range(max(computed) + 1))


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache_folder")  # where passes were timed before, none is timed
def test_the_command_line_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("llama_cpp")
    path = tmp_path / "trace.json"
    command = ["generate", "-p", "def f(", "-n", "6", "-c", "256", "-t", "1", "--trace", str(path)]
    assert command_line.main(command) == 0
    assert f"trace: {path}" in capsys.readouterr().err
    events = read(path.read_bytes())
    for name in ("load", "planning", "target: weights", "draft: context", "prompt", "generation"):
        assert len(spans(events, name, Track.ENGINE)) == 1, name
    n_timed = len(spans(events, "time a pass"))
    assert n_timed >= 2
    n_passes = len(spans(events, "pass", Track.TARGET))
    assert n_passes == 1 + n_timed + len(spans(events, "round"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another Ctrl-C")
def test_ctrl_c_leaves_a_whole_trace(tmp_path: Path):
    """The trace goes through a pipe: the command cannot end its text while nobody reads."""
    pytest.importorskip("llama_cpp")
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    command = [sys.executable, "-m", "edgespec", "generate", "-p", "def f(", "-n", "-1"]
    process = subprocess.Popen(
        [*command, "--no-draft", "-t", "1", "--trace", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # a test run in the background ignores Ctrl-C, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    content = b""
    while b'"round"' not in content:
        if not (piece := os.read(pipe, 4096)):  # nobody has opened it for writing
            assert process.poll() is None
            time.sleep(0.02)
        content += piece
    process.send_signal(signal.SIGINT)
    while piece := os.read(pipe, 1 << 16):
        content += piece
    os.close(pipe)
    assert process.wait() == 130
    assert spans(read(content), "generation")
