"""Spans on tracks: the interface of traces, which is off by default.

A trace that is off keeps nothing and reads no clock; `trace_file.py` writes one to a file.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

from edgespec.concurrency.owning import Closeable

Detail = str | int | float


class Track(Enum):
    """A row of the viewer, whose spans follow or contain each other."""

    ENGINE = "engine"
    BESIDE = "draft, beside the pass"
    TARGET = "target"
    STORAGE = "storage"
    EXPERTS = "storage, experts"


class Span:
    """A period of time; leaving its block ends it.

    This base class is the span of a trace that is off: it keeps nothing and reads no clock.
    """

    __slots__ = ()

    def note(self, **details: Detail) -> Self:
        """Add details that the viewer shows when the span is selected."""
        return self

    def end(self) -> None:
        """End the span now. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


NO_SPAN = Span()


class Trace(Closeable):
    """Receives records. This base class is off: it keeps nothing and reads no clock."""

    is_on: bool = False

    def span(self, track: Track, name: str) -> Span:
        """A span that begins now."""
        return NO_SPAN

    def add(
        self, track: Track, name: str, begin_s: float, end_s: float, /, **details: Detail
    ) -> None:
        """Record a span that was measured with `time.perf_counter`."""

    def flush(self) -> None:
        """Write pending records. Raises nothing: `close` raises a failure."""

    def close(self) -> None:
        """Write pending records and end the trace. Idempotent."""


OFF = Trace()
