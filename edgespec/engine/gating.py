"""When drafting beside a pass pays.

A value that answers every pass with its successor. It sees seconds that were measured elsewhere
and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgespec.values import PassReport


@dataclass(frozen=True, slots=True)
class OverlapGate:
    """Open while passes wait for reads: only then are there cores that a draft may use.

    Two models that compute on the same cores at once gain nothing. Drafting beside a pass takes
    from its stall, so the share that closes the gate is well below the one that opens it.
    """

    opens_above: float = 0.3
    closes_below: float = 0.1
    is_open: bool = False

    def observe(self, report: PassReport) -> OverlapGate:
        if report.wall_s <= 0:
            return self
        stalled = report.stall_s / report.wall_s
        return replace(
            self, is_open=stalled > (self.closes_below if self.is_open else self.opens_above)
        )
