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

from edgespec.errors import BudgetError, EdgespecError, UsageError
from edgespec.tracing.spans import OFF, Track
from edgespec.tracing.trace_file import MAX_EVENTS, TraceFile, open_trace
from traces import KeptFile, check, counts, read, read_cut_off, spans, ticking, trace_in_memory

MIB = 1 << 20


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


def test_a_span_that_is_forgotten_is_not_recorded():
    trace, file = trace_in_memory()
    with trace.span(Track.ENGINE, "nothing") as span:
        span.forget()
    trace.close()
    assert not spans(read(file.content), "nothing")


def test_every_event_is_a_line_of_its_own():
    trace, file = trace_in_memory()
    for i in range(3):
        trace.span(Track.ENGINE, f"line\n{i}").end()
    trace.close()
    lines = file.content.decode().splitlines()
    assert lines[0] == "[" and lines[-1] == "]"
    events = [json.loads(line.rstrip(",")) for line in lines[1:-1]]
    assert events == read(file.content)


@given(times=st.lists(st.floats(0, 1e6), min_size=4, max_size=4))
def test_rounding_never_lets_a_part_outlive_the_whole(times: list[float]):
    first, second, third, fourth = sorted(times)
    trace, file = trace_in_memory(clock=lambda: 0.0)
    trace.add(Track.ENGINE, "part", second, third)
    trace.add(Track.ENGINE, "whole", first, fourth)
    trace.close()
    read(file.content)


def test_a_whole_is_written_before_its_parts():
    trace, file = trace_in_memory(clock=lambda: 0.0)
    trace.add(Track.ENGINE, "part", 0.0, 1.0)
    trace.add(Track.ENGINE, "whole", 0.0, 2.0)
    trace.close()
    assert [e["name"] for e in read(file.content) if e["ph"] == "X"] == ["whole", "part"]


def test_a_read_says_how_fast_it_was():
    trace, file = trace_in_memory(clock=lambda: 0.0)
    trace.add(Track.STORAGE, "read", 1.0, 3.0, bytes=600_000_000)
    trace.close()
    [written] = spans(read(file.content), "read")
    assert written["args"] == {"bytes": 600_000_000, "MB/s": 300.0}


def test_a_span_that_an_error_leaves_is_recorded_too():
    trace, file = trace_in_memory()
    with pytest.raises(ZeroDivisionError), trace.span(Track.ENGINE, "round"):
        _ = 1 / 0
    trace.close()
    assert spans(read(file.content), "round")


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


def test_no_more_than_the_stated_number_of_events_wait_in_memory():
    trace, file = trace_in_memory(clock=lambda: 0.0)
    for _ in range(3 * MAX_EVENTS):
        trace.add(Track.ENGINE, "step", 0.0, 0.0)
    assert len(spans(read_cut_off(file.content), "step")) > 2 * MAX_EVENTS
    trace.close()


def test_a_file_that_was_cut_off_shows_all_that_was_written_by_then():
    trace, file = trace_in_memory()
    for i in range(3):
        trace.span(Track.ENGINE, f"round {i}").end()
        trace.flush()
        assert len(spans(read_cut_off(file.content), f"round {i}")) == 1
    trace.close()


def test_what_happens_after_closing_is_not_recorded():
    trace, file = trace_in_memory()
    late = trace.span(Track.ENGINE, "late")
    trace.close()
    late.end()
    trace.count_bytes("late", late=1)
    trace.flush()
    trace.close()
    assert b"late" not in file.content


@pytest.mark.parametrize("room", [600, 900, 1200])
def test_on_a_full_disk_the_work_goes_on_and_closing_tells(room: int):
    file = KeptFile()
    trace = TraceFile(lambda: file, Path("trace.json"))
    trace.flush()
    file.room = len(file.content) + room
    for i in range(100):
        trace.span(Track.ENGINE, f"round {i}").end()
        trace.flush()
    with pytest.raises(EdgespecError, match=r"trace\.json .*No space left on device.*name another"):
        trace.close()
    trace.close()
    whole_lines = file.content.decode().rstrip("]\n").split(",\n")
    events = [json.loads(line.removeprefix("[\n")) for line in whole_lines]
    check(events)
    assert spans(events, "round 0") and not spans(events, "round 99")


def test_what_went_wrong_in_the_block_is_said_rather_than_the_full_disk():
    file = KeptFile()
    trace = TraceFile(lambda: file, Path("trace.json"))
    file.room = 0
    with pytest.raises(KeyboardInterrupt), trace:
        raise KeyboardInterrupt
    assert file.closed


def test_a_counter_is_in_mib():
    trace, file = trace_in_memory()
    trace.count_bytes("ring (MiB)", filled=3 * MIB, reading=MIB // 2)
    trace.close()
    assert counts(read(file.content), "ring (MiB)") == [{"filled": 3.0, "reading": 0.5}]


def test_a_trace_that_is_off_reads_no_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("time.perf_counter")
    with OFF, OFF.span(Track.ENGINE, "round").note(tokens=1) as span:
        span.forget()
        OFF.add(Track.ENGINE, "step", 0.0, 1.0, tokens=1)
        OFF.count_bytes("ring (MiB)", filled=1)
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


def test_a_trace_that_was_cut_off_is_replaced_too(tmp_path: Path):
    path = tmp_path / "trace.json"
    with open_trace(path):
        pass
    path.write_bytes(path.read_bytes()[:-20])
    with open_trace(path):
        pass
    read(path.read_bytes())


def test_an_empty_file_becomes_a_trace(tmp_path: Path):
    path = tmp_path / "trace.json"
    path.touch()
    with open_trace(path):
        pass
    read(path.read_bytes())


@pytest.mark.parametrize("content", [b"[", b"dear diary\n", b'[\n{"name": "other", "ph": "X"}\n]'])
def test_a_file_that_is_no_trace_of_ours_is_refused_and_kept(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"notes\.json exists and is not a trace"):
        open_trace(path)
    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no folder .*nowhere"):
        open_trace(tmp_path / "nowhere" / "trace.json")


def test_a_folder_is_no_file_to_write(tmp_path: Path):
    with pytest.raises(UsageError, match="it is a folder: name a file in it"):
        open_trace(tmp_path)


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


@pytest.mark.parametrize("before", ["", "an earlier trace", None])
def test_a_refused_run_leaves_the_path_as_it_was(tmp_path: Path, before: str | None):
    path = tmp_path / "trace.json"
    if before is not None:
        path.touch()
    if before:
        with open_trace(path) as trace:
            trace.span(Track.ENGINE, before).end()
    found = path.read_bytes() if before is not None else None
    with pytest.raises(BudgetError):
        planned_and_ended_by(BudgetError("too small", 1), path)
    assert (path.read_bytes() if path.exists() else None) == found


def test_an_interrupted_run_leaves_its_trace(tmp_path: Path):
    path = tmp_path / "trace.json"
    with pytest.raises(KeyboardInterrupt):
        planned_and_ended_by(KeyboardInterrupt(), path)
    assert spans(read(path.read_bytes()), "planning")
