"""The queue of requests, and the metrics of the server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from edgespec.completions.refusals import overloaded
from edgespec.completions.request_limits import POOL_BYTES
from edgespec.memory import process
from edgespec.server.hosting import ModelHost
from edgespec.values import GenerationResult


@dataclass(eq=False, slots=True)
class _Turn:
    """A request that runs or waits for its turn."""

    n_bytes: int
    begun: asyncio.Future[None]


class Turns:
    """The turns of requests to one model, `n_slots` of which run at once.

    Requests keep their order. They may need bytes of a pool: the first of them in line gets free
    bytes, and requests that need none may overtake it.
    """

    def __init__(self, n_slots: int = 1, pool_bytes: int = POOL_BYTES) -> None:
        """`pool_bytes` is the size of the pool, which no request exceeds."""
        self.n_slots = n_slots
        self._free_bytes = pool_bytes
        self.n_processing = 0
        """Number of running requests."""
        self._waiting: list[_Turn] = []

    def is_busy(self, n_bytes: int = 0) -> bool:
        """True if a request that needs `n_bytes` of the pool would have to wait."""
        waits = any(turn.n_bytes for turn in self._waiting)
        return self.n_processing >= self.n_slots or (
            n_bytes > 0 and (waits or n_bytes > self._free_bytes)
        )

    @asynccontextmanager
    async def turn(self, n_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of a request that has a place, and hold `n_bytes` of the pool."""
        turn = _Turn(n_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._begin()
        try:
            await turn.begun
            yield
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self.n_processing -= 1
                self._free_bytes += n_bytes
            self._begin()

    def _begin(self) -> None:
        """Start the requests in line for which there are slots and bytes."""
        free_bytes = self._free_bytes
        for turn in list(self._waiting):
            if self.n_processing < self.n_slots and turn.n_bytes <= free_bytes:
                if not turn.begun.done():  # otherwise cancelled, and its task has not run since
                    self._waiting.remove(turn)
                    turn.begun.set_result(None)
                    self.n_processing += 1
                    self._free_bytes -= turn.n_bytes
                    free_bytes -= turn.n_bytes
            elif turn.n_bytes:
                free_bytes = 0  # the first in line that needs bytes gets them first


class Queue:
    """Places of requests, of which up to `max_waiting` may wait; others are refused."""

    def __init__(self, max_waiting: int, turns: Callable[[], Iterable[Turns]]) -> None:
        """`turns` gives those of all models that are loaded."""
        self._max_waiting = max_waiting
        self._turns = turns
        self.n_in_progress = 0
        self.is_ending = False
        """True once the server shuts down: no waiting request starts."""
        self.preparing = asyncio.Lock()
        """Held while a request is prepared, which takes far more memory than its body."""

    @property
    def n_slots(self) -> int:
        """Number of requests that are answered at once."""
        return sum(turns.n_slots for turns in self._turns())

    @property
    def n_processing(self) -> int:
        """Number of requests that run."""
        return sum(turns.n_processing for turns in self._turns())

    def n_for_each(self, turns: Turns) -> int:
        """Number of texts that one request may generate at once: its own slot and idle ones.

        Any thread may call it.
        """
        return 1 + max(0, turns.n_slots - max(1, self.n_in_progress))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue for one request. Raises Refusal if there is none."""
        if self.n_in_progress >= max(1, self.n_slots) + self._max_waiting:
            raise overloaded(
                f"{self.n_in_progress} requests are under way, which is as many as this server "
                "takes",
                "queue_full",
            )
        self.n_in_progress += 1
        try:
            yield
        finally:
            self.n_in_progress -= 1


_TOTALS: dict[str, Callable[[GenerationResult], float]] = {
    "prompt_tokens_total": lambda result: len(result.prompt_tokens),
    "reused_tokens_total": lambda result: result.reused_tokens,
    "saved_passes_total": lambda result: result.saved_passes,
    "generated_tokens_total": lambda result: len(result.tokens),
    "accepted_tokens_total": lambda result: result.speculation.accepted,
    "prompt_seconds_total": lambda result: result.timings.prompt_s,
    "decode_seconds_total": lambda result: result.timings.decode_s,
}
"""Value of each total over all generations."""


class ServerFigures:
    """Metrics since the server was started."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._totals: dict[str, float] = dict.fromkeys(_TOTALS, 0)
        self.answers: Counter[int] = Counter()
        """Number of responses by HTTP status."""
        self.cancelled = 0
        """Number of requests whose client disconnected."""

    def count(self, result: GenerationResult) -> None:
        """Add the result of one generation."""
        for name, of in _TOTALS.items():
            self._totals[name] += of(result)

    def text(self, queue: Queue, host: ModelHost) -> str:
        """The metrics in Prometheus's text format."""
        values: dict[str, float] = {
            "uptime_seconds": time.monotonic() - self._began_s,
            "requests_in_progress": queue.n_in_progress,
            "requests_processing": queue.n_processing,
            "slots": queue.n_slots,
            **self._totals,
            "clients_gone_total": self.cancelled,
            "passes_total": host.paging.passes,
            "read_bytes_total": host.paging.bytes_read,
            "stall_seconds_total": host.paging.stall_s,
            "model_loads_total": host.n_loads,
            "peak_memory_bytes": process.peak_rss_bytes(),
        }
        if host.current is not None:
            values["memory_budget_bytes"] = host.current.model.plan.budget_bytes
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE edgespec_{name} {kind}", f"edgespec_{name} {value}"]
        lines.append("# TYPE edgespec_answers_total counter")
        for status, count in sorted(self.answers.items()):
            lines.append(f'edgespec_answers_total{{status="{status}"}} {count}')
        return "\n".join([*lines, ""])
