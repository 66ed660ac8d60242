"""The queue of requests, and the metrics of the server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from edgespec.completions.refusals import overloaded
from edgespec.completions.request_limits import POOL_BYTES
from edgespec.values import GenerationResult, PagingStats


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
        self._waiting: deque[_Turn] = deque()

    def is_busy(self, n_bytes: int = 0) -> bool:
        """True if a request that needs `n_bytes` of the pool would have to wait."""
        if self.n_processing >= self.n_slots:
            return True
        waits = any(turn.n_bytes for turn in self._waiting)
        return n_bytes > 0 and (waits or n_bytes > self._free_bytes)

    @asynccontextmanager
    async def turn(self, n_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of a request that has a place, and hold `n_bytes` of the pool."""
        turn = _Turn(n_bytes, asyncio.get_running_loop().create_future())
        if self.is_busy(n_bytes):
            await self._wait(turn)
        else:
            self._begin(turn)
        try:
            yield
        finally:
            self._give_back(turn)

    async def _wait(self, turn: _Turn) -> None:
        self._waiting.append(turn)
        try:
            await turn.begun
        except asyncio.CancelledError:
            if turn.begun.done() and not turn.begun.cancelled():  # it came at the same moment
                self._give_back(turn)
            else:
                self._leave(turn)
            raise

    def _begin(self, turn: _Turn) -> None:
        self.n_processing += 1
        self._free_bytes -= turn.n_bytes
        turn.begun.set_result(None)

    def _give_back(self, turn: _Turn) -> None:
        """End a turn and start others."""
        self.n_processing -= 1
        self._free_bytes += turn.n_bytes
        self._begin_others()

    def _begin_others(self) -> None:
        """Start waiting requests for which there are slots and bytes."""
        while self.n_processing < self.n_slots and (turn := self._next()) is not None:
            self._waiting.remove(turn)
            if not turn.begun.done():  # otherwise cancelled, and its task has not run since
                self._begin(turn)

    def _next(self) -> _Turn | None:
        """The waiting request that may start first."""
        may_take = True
        for turn in self._waiting:
            if not turn.n_bytes or (may_take and turn.n_bytes <= self._free_bytes):
                return turn
            may_take = False  # the first in line that needs bytes gets them first
        return None

    def _leave(self, turn: _Turn) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        self._begin_others()  # requests behind it may have waited for its bytes


class Queue(Turns):
    """A queue with running and up to `max_waiting` waiting requests; others are refused.

    Its own turns are those of the model that has the budget for itself; models that share it have
    turns of their own, and a place in the queue in common.
    """

    def __init__(self, max_waiting: int, n_slots: int = 1, pool_bytes: int = POOL_BYTES) -> None:
        super().__init__(n_slots, pool_bytes)
        self._max_waiting = max_waiting
        self.n_in_progress = 0
        self.is_ending = False
        """True once the server shuts down: no waiting request starts."""
        self.preparing = asyncio.Lock()
        """Held while a request is prepared, which takes far more memory than its body."""
        self._all: list[Turns] = [self]

    def resize(self, n_slots: int) -> None:
        """Serve another model, while no request runs or waits for its turn."""
        assert not self.n_processing, "requests run"
        assert not self._waiting, "requests wait"
        self.n_slots = n_slots

    def beside(self, n_slots: int) -> Turns:
        """Turns of a model that shares the budget with others."""
        turns = Turns(n_slots)
        self._all.append(turns)
        return turns

    @property
    def n_slots_of_all(self) -> int:
        """Number of requests that all models answer at once."""
        return sum(turns.n_slots for turns in self._all)

    @property
    def n_processing_of_all(self) -> int:
        """Number of requests that run, whatever their model."""
        return sum(turns.n_processing for turns in self._all)

    def n_for_each(self, turns: Turns) -> int:
        """Number of texts that one request may generate at once: its own slot and idle ones.

        Any thread may call it.
        """
        return 1 + max(0, turns.n_slots - max(1, self.n_in_progress))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue for one request. Raises Refusal if there is none."""
        if self.n_in_progress >= self.n_slots_of_all + self._max_waiting:
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


_TOTALS: dict[str, tuple[str, Callable[[GenerationResult], float]]] = {
    "prompt_tokens": ("Tokens of prompts", lambda r: len(r.prompt_tokens)),
    "reused_tokens": (
        "Tokens of prompts that were in the models already",
        lambda r: r.reused_tokens,
    ),
    "saved_passes": (
        "Passes that reading those tokens would have taken",
        lambda r: r.saved_passes,
    ),
    "generated_tokens": ("Tokens written", lambda r: len(r.tokens)),
    "accepted_tokens": (
        "Tokens written that the draft had guessed",
        lambda r: r.speculation.accepted,
    ),
    "prompt_seconds": ("Reading prompts", lambda r: r.timings.prompt_s),
    "decode_seconds": ("Writing tokens", lambda r: r.timings.decode_s),
}
"""Help text and value of each total over all generations."""


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
        for name, (_, of) in _TOTALS.items():
            self._totals[name] += of(result)

    def lines(
        self,
        queue: Queue,
        paging: PagingStats,
        peak_bytes: int,
        n_loads: int = 0,
        budget_bytes: int | None = None,
    ) -> Iterator[str]:
        """The metrics in Prometheus's text format; `budget_bytes` is None while no model is
        loaded."""
        budget = ("memory_budget_bytes", "gauge", "Most memory of the process", budget_bytes)
        for name, kind, text, value in (
            ("uptime_seconds", "gauge", "Since the server began", time.monotonic() - self._began_s),
            ("requests_in_progress", "gauge", "Answered or waiting", queue.n_in_progress),
            ("requests_processing", "gauge", "Being answered", queue.n_processing_of_all),
            ("slots", "gauge", "Requests that are answered at once", queue.n_slots_of_all),
            *(
                (f"{name}_total", "counter", text, self._totals[name])
                for name, (text, _) in _TOTALS.items()
            ),
            ("clients_gone_total", "counter", "Requests given up by clients", self.cancelled),
            ("passes_total", "counter", "Passes over paged weights", paging.passes),
            ("read_bytes_total", "counter", "Weights read from storage", paging.bytes_read),
            ("stall_seconds_total", "counter", "Compute waited for weights", paging.stall_s),
            ("model_loads_total", "counter", "Models loaded since the server began", n_loads),
            ("peak_memory_bytes", "gauge", "Peak resident memory", peak_bytes),
            *([] if budget_bytes is None else [budget]),
        ):
            yield f"# HELP edgespec_{name} {text}."
            yield f"# TYPE edgespec_{name} {kind}"
            yield f"edgespec_{name} {value}"
        yield "# HELP edgespec_answers_total Answers by HTTP status."
        yield "# TYPE edgespec_answers_total counter"
        for status, count in sorted(self.answers.items()):
            yield f'edgespec_answers_total{{status="{status}"}} {count}'
