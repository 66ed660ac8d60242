"""What decides which strategy pays, besides the models: where weights are, who computes, how fast
storage is, and by which rules trees grow. What was learnt of costs is remembered under its name,
and for nothing else.

A value that is shown what passes read. It reads no clock and no file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgespec.values import PagingStats

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Of one engine's runs."""

    streamed_tenths: int
    """Of the weights, that every pass reads."""
    threads: tuple[int, ...]
    """Of the target and the draft, as far as models tell."""
    rules: str = ""
    """Those that are not the usual ones."""
    read_bytes_per_s: float = 0.0
    """Of storage; 0 before a pass has shown it."""

    @classmethod
    def of(cls, paging: PagingStats, threads: tuple[int, ...], rules: str = "") -> Circumstances:
        total_bytes = paging.pinned_bytes + paging.streamed_bytes
        tenths = round(10 * paging.streamed_bytes / total_bytes) if total_bytes else 0
        return cls(tenths, tuple(n for n in threads if n), rules)

    def with_reads(self, nbytes: int, seconds: float) -> Circumstances:
        """After a pass that read so much in so long."""
        if nbytes <= 0 or seconds <= 0:
            return self
        return replace(self, read_bytes_per_s=nbytes / seconds)

    @property
    def are_known(self) -> bool:
        """Whether a name can be given: where weights are streamed, not before some were read."""
        return self.read_bytes_per_s > 0 or not self.streamed_tenths

    @property
    def name(self) -> str:
        """Speeds are told apart by powers of two: a disk's own differs by a tenth or two."""
        name = f"{self.streamed_tenths} tenths streamed"
        if self.threads:
            name += f", {'+'.join(map(str, self.threads))} threads"
        if self.streamed_tenths:
            speed = max(self.read_bytes_per_s / MB, 1.0)
            name += f", {1 << round(math.log2(speed))} MB/s"
        return f"{name}, {self.rules}" if self.rules else name
