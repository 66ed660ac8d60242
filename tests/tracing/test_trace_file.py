"""Trace files: their format, and what becomes of them when writing fails or is cut off."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import EdgespecError, UsageError
from edgespec.tracing.spans import OFF, Track
from edgespec.tracing.trace_file import TraceFile, open_trace
from sentences import refuses
from traces import KeptFile, check, read, read_cut_off, spans, ticking, trace_in_memory


def test_a_span_has_its_track_its_microseconds_and_its_notes():
    trace, file = trace_in_memory(clock=ticking(0.5))
    with trace.span(Track.TARGET, "pass") as span:
        span.note(tokens=7)
    trace.close()
    events = read(file.content)
    [written] = spans(events, "pass", Track.TARGET)
    assert (written["ts"], written["dur"], written["args"]) == (5e5, 5e5, {"tokens": 7})
    named = {event["tid"]: event["args"]["name"] for event in events if "thread_name" in str(event)}
    assert named[written["tid"]] == "target"


@given(times=st.lists(st.floats(0, 1e6), min_size=4, max_size=4))
def test_rounding_never_lets_a_part_outlive_the_whole(times: list[float]):
    first, second, third, fourth = sorted(times)
    trace, file = trace_in_memory(clock=lambda: 0.0)
    trace.add(Track.ENGINE, "part", second, third)
    trace.add(Track.ENGINE, "whole", first, fourth)
    trace.close()
    read(file.content)


def test_many_threads_may_record_while_one_writes():
    trace, file = trace_in_memory()

    def work(track: Track) -> None:
        for i in range(1000):
            with trace.span(track, "work") as span:
                span.note(number=i)

    threads = [threading.Thread(target=work, args=(track,)) for track in Track]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        trace.flush()
    trace.close()
    events = read(file.content)
    for track in Track:
        numbers = [event["args"]["number"] for event in spans(events, "work", track)]
        assert numbers == list(range(1000))


def test_a_file_that_was_cut_off_shows_all_that_was_written_by_then():
    trace, file = trace_in_memory()
    for i in range(3):
        trace.span(Track.ENGINE, f"round {i}").end()
        trace.flush()
        assert len(spans(read_cut_off(file.content), f"round {i}")) == 1
    trace.close()


@pytest.mark.parametrize("room", [600, 900, 1200])
def test_on_a_full_disk_the_work_goes_on_and_closing_tells(room: int):
    file = KeptFile()
    trace = TraceFile(lambda: file, Path("trace.json"))
    trace.flush()
    file.room = len(file.content) + room
    for i in range(100):
        trace.span(Track.ENGINE, f"round {i}").end()
        trace.flush()
    with refuses(EdgespecError):
        trace.close()
    trace.close()
    whole_lines = file.content.decode().rstrip("]\n").split(",\n")
    events = [json.loads(line.removeprefix("[\n")) for line in whole_lines]
    check(events)
    assert spans(events, "round 0") and not spans(events, "round 99")


def test_a_trace_that_is_off_reads_no_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("time.perf_counter")
    with OFF, OFF.span(Track.ENGINE, "round").note(tokens=1) as span:
        OFF.add(Track.ENGINE, "step", 0.0, 1.0, tokens=1)
        OFF.flush()
    assert span is OFF.span(Track.TARGET, "pass")


def test_a_trace_is_replaced_by_the_next_and_nothing_of_it_stays(tmp_path: Path):
    path = tmp_path / "trace.json"
    for name, n in (("old", 100), ("new", 1)):
        with open_trace(path) as trace:
            for _ in range(n):
                trace.span(Track.ENGINE, name).end()
    events = read(path.read_bytes())
    assert len(spans(events, "new")) == 1 and not spans(events, "old")


@pytest.mark.parametrize("content", [b"[", b"dear diary\n", b'[\n{"name": "other", "ph": "X"}\n]'])
def test_a_file_that_is_no_trace_of_ours_is_refused_and_kept(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.json"
    path.write_bytes(content)
    with refuses(UsageError):
        open_trace(path)
    assert path.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_may_take_the_trace(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open_trace(path) as trace:
        trace.span(Track.ENGINE, "round").end()
    content = os.read(reader, 1 << 16)
    os.close(reader)
    assert spans(read(content), "round")


def planned_and_ended_by(error: BaseException, path: Path) -> None:
    with open_trace(path) as trace:
        trace.span(Track.ENGINE, "planning").end()
        raise error


def test_an_interrupted_run_leaves_its_trace(tmp_path: Path):
    path = tmp_path / "trace.json"
    with pytest.raises(KeyboardInterrupt):
        planned_and_ended_by(KeyboardInterrupt(), path)
    assert spans(read(path.read_bytes()), "planning")
