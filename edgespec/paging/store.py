"""Base class and totals of weight stores: the ring of streamed segments and the cache of experts.

Counts reads and stalls; knows nothing about addresses of weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from edgespec.concurrency.owning import Closeable
from edgespec.values import PassReport


@dataclass
class Reads:
    """Bytes and seconds of reads and stalls: since loading, or between two moments."""

    bytes_read: int = 0
    """Bytes read for passes."""
    stall_s: float = 0.0
    """Seconds in which passes waited for reads."""
    choice_stall_s: float = 0.0
    """Part of `stall_s` spent on experts; grows with the number of tokens in a pass."""
    first_row_stall_s: float = 0.0
    """Part of `choice_stall_s` spent on experts that the first token of a pass chose."""
    read_s: float = 0.0
    """Seconds spent reading streamed segments, overlapped with compute or not."""

    def since(self, earlier: Reads) -> Reads:
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return Reads(*(now - before for now, before in pairs))


class Store(Reads, Closeable):
    """Reads weights from files while a model computes; counts since loading.

    A ring serves the weights that every pass needs in a fixed order, an expert cache those that a
    layer has just chosen; each has its own methods for serving them.
    """

    @abstractmethod
    def cancel(self) -> None:
        """Wake threads that wait for weights; no thread waits again until `resume`."""

    @abstractmethod
    def resume(self) -> None: ...


def reads_of(stores: Sequence[Store]) -> Reads:
    """Totals of `stores` since the model was loaded."""
    names = [field.name for field in fields(Reads)]
    return Reads(*(sum(getattr(store, name) for store in stores) for name in names))


def call_report(
    wall_s: float, call: Reads, since_report: Reads, passes: int, n_rows: int
) -> PassReport:
    """Cost of a model's call; what was read counts from the end of the call before it."""
    return PassReport(
        wall_s=wall_s,
        stall_s=call.stall_s,
        choice_stall_s=call.choice_stall_s,
        first_row_stall_s=call.first_row_stall_s,
        bytes_read=since_report.bytes_read,
        read_s=since_report.read_s,
        passes=passes,
        n_tokens=n_rows,
    )
