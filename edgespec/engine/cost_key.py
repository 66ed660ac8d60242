"""Cache key of learnt costs: streamed share, threads, disk speed, latency, and engine settings.

A frozen value; it reads no clock and no file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgespec.values import PagingStats

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class CostKey:
    """Cache key of learnt costs."""

    streamed_tenths: int
    """Streamed share of the weights, in tenths."""
    threads: tuple[int, ...]
    """Threads of the target and of the draft, without models that do not report them."""
    rules: str = ""
    """Engine settings that differ from their defaults."""
    read_bytes_per_s: float = 0.0
    """Speed of storage; 0 before it was measured."""
    latency_s: float = 0.0
    """Network latency in a pass."""

    @classmethod
    def of(cls, paging: PagingStats, threads: tuple[int, ...], rules: str = "") -> CostKey:
        total_bytes = paging.pinned_bytes + paging.streamed_bytes
        tenths = round(10 * paging.streamed_bytes / total_bytes) if total_bytes else 0
        return cls(tenths, tuple(n for n in threads if n), rules)

    def with_reads(self, nbytes: int, seconds: float) -> CostKey:
        """The key after a pass that read `nbytes` in `seconds`."""
        if nbytes <= 0 or seconds <= 0:
            return self
        return replace(self, read_bytes_per_s=nbytes / seconds)

    @property
    def share_name(self) -> str:
        """The streamed share as text, the beginning of `name`."""
        return f"{self.streamed_tenths} tenths streamed"

    @property
    def is_known(self) -> bool:
        """True if the key is complete; with streamed weights, it needs a measured speed."""
        return self.read_bytes_per_s > 0 or not self.streamed_tenths

    @property
    def name(self) -> str:
        """The key as text. Speed and latency are rounded to powers of two, as a disk's speed varies
        by 10 to 20 %."""
        name = self.share_name
        if self.threads:
            name += f", {'+'.join(map(str, self.threads))} threads"
        if self.streamed_tenths:
            speed = max(self.read_bytes_per_s / MB, 1.0)
            name += f", {1 << round(math.log2(speed))} MB/s"
        if self.latency_s:
            name += f", {1 << round(math.log2(max(1e3 * self.latency_s, 1.0)))} ms away"
        return f"{name}, {self.rules}" if self.rules else name
