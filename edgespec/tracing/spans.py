"""Spans on tracks, and counters of bytes: records of where time and memory go.

It knows neither what it records nor where that is kept: `trace_file.py` does, and until it is asked
to, nothing is kept and no clock is read.
"""

from __future__ import annotations

from enum import Enum
from types import TracebackType
from typing import Self

from edgespec.concurrency.owning import Closeable

Detail = str | int | float


class Track(Enum):
    """A row of the viewer, in which spans lie side by side or one within another."""

    ENGINE = "engine"
    BESIDE = "draft, beside the pass"
    TARGET = "target"
    STORAGE = "storage"
    EXPERTS = "storage, experts"


class Span:
    """Something that has a beginning and an end; leaving its block ends it.

    This one is what a trace that is off hands out: it keeps nothing and reads no clock.
    """

    __slots__ = ()

    def note(self, **details: Detail) -> Self:
        """Details that the viewer shows when the span is selected."""
        return self

    def end(self) -> None:
        """It ends now. Idempotent."""

    def forget(self) -> None:
        """It came to nothing: it is not recorded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


NO_SPAN = Span()


class Trace(Closeable):
    """Receives records. This one is off: it keeps nothing and reads no clock."""

    is_on: bool = False

    def span(self, track: Track, name: str) -> Span:
        """A span that begins now."""
        return NO_SPAN

    def add(
        self, track: Track, name: str, begin_s: float, end_s: float, /, **details: Detail
    ) -> None:
        """A span that was measured elsewhere, with `time.perf_counter`."""

    def count_bytes(self, name: str, **nbytes: int) -> None:
        """Record bytes by owner from now on; together they are the counter `name`."""

    def set_budget(self, budget_bytes: int) -> None:
        """Record the budget to compare the process's memory with."""

    def flush(self) -> None:
        """Write what was recorded. Raises nothing: a failure is kept for `close`."""

    def close(self) -> None:
        """Write the rest. Idempotent."""


OFF = Trace()
