"""Writes a trace that Perfetto and Chrome open: a JSON array of trace events, one a line.

Owns the format and the file, and does not know what is recorded. Viewers do not need the closing
bracket, so a truncated file shows all events that were written.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from edgespec.errors import BudgetError, EdgespecError, ModelError, StateError, UsageError
from edgespec.files.named_errors import check_output, named
from edgespec.tracing.spans import Detail, Span, Trace, Track

MAX_EVENTS = 2048
"""Most events in memory, about 1 MiB; they are written when this is reached, and by `flush`."""

_OPENING = b'[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "edgespec"}}'
"""First bytes of a trace, by which a file of edgespec is recognised."""
_CLOSING = b"\n]\n"
_REFUSALS = (UsageError, ModelError, StateError, BudgetError)
"""Errors of a run that did not begin."""

_THREADS = {track: number for number, track in enumerate(Track, 1)}


class _Event(NamedTuple):
    track: Track
    name: str
    begin_s: float
    end_s: float
    details: dict[str, Detail]


class _OpenSpan(Span):
    __slots__ = ("_begin_s", "_details", "_is_open", "_name", "_trace", "_track")

    def __init__(self, trace: TraceFile, track: Track, name: str) -> None:
        self._trace, self._track, self._name = trace, track, name
        self._details: dict[str, Detail] = {}
        self._is_open = True
        self._begin_s = trace.clock()

    def note(self, **details: Detail) -> Self:
        self._details.update(details)
        return self

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            end_s = self._trace.clock()
            self._trace.add(self._track, self._name, self._begin_s, end_s, **self._details)


def open_trace(path: str | Path) -> TraceFile:
    """A trace to `path`, which is replaced if it is empty or a trace of edgespec, with the first
    records.

    Raises UsageError for a file of another kind or a missing folder. A file that cannot be written
    is an error of `close` alone.
    """
    path = Path(path)
    check_output(path)
    if path.is_file():
        with named(f"the trace {path} cannot be written", EdgespecError), path.open("rb") as file:
            begun = file.read(len(_OPENING))
        if begun not in (b"", _OPENING):
            raise UsageError(
                f"{path} exists and is not a trace of edgespec: name another file, or delete "
                "this one"
            )
    return TraceFile(lambda: path.open("w+b", buffering=0), path)


class TraceFile(Trace):
    """A trace that is written to an unbuffered binary file; made by `open_trace`.

    Any thread may record. A file that cannot be written stops the trace and nothing else, until
    `close` raises EdgespecError.
    """

    is_on = True

    def __init__(
        self,
        open_file: Callable[[], BinaryIO],
        path: Path,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The file is opened when records are written, at the latest by `close`."""
        self.clock = clock
        self._open_file = open_file
        self._file: BinaryIO | None = None
        self._path = path
        self._start_s = clock()
        self._events: deque[_Event] = deque()
        self._writing = threading.Lock()
        self._is_open = True
        self._failure: OSError | None = None

    def span(self, track: Track, name: str) -> Span:
        return _OpenSpan(self, track, name)

    def add(
        self, track: Track, name: str, begin_s: float, end_s: float, /, **details: Detail
    ) -> None:
        if self._is_open:
            self._events.append(_Event(track, name, begin_s, end_s, details))
            if len(self._events) >= MAX_EVENTS:
                self.flush()

    def flush(self) -> None:
        with self._writing:
            events = [self._events.popleft() for _ in range(len(self._events))]
            # spans are recorded when they end, so inner ones first; viewers want outer ones first
            events.sort(key=lambda event: (event.begin_s, -event.end_s))
            self._write(b"".join(_line(self._as_json(event)) for event in events))

    def close(self) -> None:
        """Write pending records. Idempotent. Raises EdgespecError if a write failed."""
        if not self._is_open:
            return
        self._is_open = False
        self.flush()
        with self._writing:
            self._write(_CLOSING)
            if self._file is not None:
                self._file.close()
        if self._failure:
            raise EdgespecError(
                f"the trace {self._path} could not be written: {self._failure.strerror}: make "
                "room, or name another file"
            ) from self._failure

    def __exit__(self, *error: object) -> None:
        """Close the trace; an error in the block takes precedence over one of the trace, and a run
        that was refused leaves the path as it was."""
        if isinstance(error[1], _REFUSALS) and self._file is None:
            self._is_open = False
            return
        try:
            self.close()
        except EdgespecError:
            if error[0] is None:
                raise

    def _as_json(self, event: _Event) -> dict[str, object]:
        """The event in the trace event format. Times in microseconds are whole nanoseconds, so that
        rounding cannot make spans overlap."""
        begin_ns, end_ns = (
            round((seconds - self._start_s) * 1e9) for seconds in (event.begin_s, event.end_s)
        )
        written: dict[str, object] = {
            "name": event.name,
            "ph": "X",
            "pid": 1,
            "tid": _THREADS[event.track],
            "ts": begin_ns / 1000,
            "dur": (end_ns - begin_ns) / 1000,
        }
        details = event.details
        if "bytes" in details and end_ns > begin_ns:
            speed = float(details["bytes"]) * 1e3 / (end_ns - begin_ns)
            details = details | {"MB/s": round(speed, 1)}
        return written | ({"args": details} if details else {})

    def _write(self, lines: bytes) -> None:
        """Append whole lines or, if that fails, none of them."""
        if self._failure or (self._file is not None and self._file.closed):
            return
        start = 0
        try:
            if self._file is None:
                self._file = self._open_file()
                lines = _HEADER + lines
            rest = memoryview(lines)
            start = self._file.tell() if self._file.seekable() else 0
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._failure = error
            with suppress(OSError):
                if self._file is not None:
                    self._file.seek(start)
                    self._file.truncate()


def _line(event: dict[str, object]) -> bytes:
    """An event with the separator before it, so that a truncated file lacks only its end."""
    return b",\n" + json.dumps(event, default=str).encode()


_HEADER = _OPENING + b"".join(
    _line({"name": f"thread_{key}", "ph": "M", "pid": 1, "tid": thread, "args": {key: value}})
    for track, thread in _THREADS.items()
    for key, value in (("name", track.value), ("sort_index", thread))
)
"""Bytes before the events."""
