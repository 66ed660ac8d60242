"""Reads traces, and checks what the trace-event format and its viewers ask of them."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgespec.tracing.spans import Track
from edgespec.tracing.trace_file import TraceFile

Event = dict[str, Any]


class KeptFile(io.BytesIO):
    """A file that can be read when it is closed, and that a disk of `room` bytes holds."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__()
        self.room = room
        self.kept = b""

    def write(self, data: Any) -> int:
        if self.room is not None and self.tell() + len(data) > self.room:
            super().write(bytes(data)[: max(0, self.room - self.tell())])
            raise OSError(28, "No space left on device")
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            self.kept = self.getvalue()
        super().close()

    @property
    def content(self) -> bytes:
        return self.kept if self.closed else self.getvalue()


def trace_in_memory(**options: Any) -> tuple[TraceFile, KeptFile]:
    file = KeptFile()
    return TraceFile(lambda: file, Path("trace.json"), **options), file


def read(content: bytes) -> list[Event]:
    """The events of a whole trace."""
    events: list[Event] = json.loads(content)
    check(events)
    return events


def read_cut_off(content: bytes) -> list[Event]:
    """The events of a trace that was not closed, read as viewers do: the bracket is added."""
    return read(content + b"]")


def check(events: Iterable[Event]) -> None:
    """Check every event against the format, and that spans of a track never overlap in part."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        assert isinstance(event["name"], str) and event["ph"] in {"X", "C", "M"} and event["pid"]
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            threads.setdefault(event["tid"], []).append((begin, begin + length))
    for spans in threads.values():
        open_until: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "a span outlives the one around it"
            open_until.append(end)


def spans(events: Iterable[Event], name: str, track: Track | None = None) -> list[Event]:
    """Spans of a name, in the order in which they began."""
    thread = list(Track).index(track) + 1 if track else None
    found = [
        event
        for event in events
        if event["ph"] == "X" and event["name"] == name and thread in {None, event["tid"]}
    ]
    return sorted(found, key=lambda event: float(event["ts"]))


def ticking(step_s: float = 1.0) -> Any:
    """A clock that goes on by a step whenever it is read."""
    ticks = itertools.count()
    return lambda: next(ticks) * step_s
