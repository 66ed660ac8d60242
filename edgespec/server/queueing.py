"""The queue of requests, and the figures that monitoring reads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from edgespec.completions.refusals import overloaded
from edgespec.values import GenerationResult, PagingStats


class Queue:
    """Up to `n_slots` requests are answered and `most_waiting` wait; a further one is refused.

    The next turn goes to the client with the fewest requests under way, among equals to the one
    that has waited longest since its last turn; requests of one client keep their order. Where the
    queue is full, a newcomer replaces the latest request of a client with several more in line.
    """

    def __init__(self, most_waiting: int, n_slots: int = 1) -> None:
        self.n_slots = n_slots
        self._most = n_slots + most_waiting
        self.n_in_progress = 0
        self.is_ending = False
        """True once the server shuts down: no waiting request begins."""
        self.preparing = asyncio.Lock()
        """Held while a request is prepared, which takes far more memory than its bytes."""
        self._running: Counter[str] = Counter()
        """Requests that are answered, by client."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Requests in line, by client; a client's last turn or first request orders them."""

    @property
    def n_processing(self) -> int:
        """Number of requests that are answered."""
        return self._running.total()

    @property
    def is_busy(self) -> bool:
        """True if a turn has to be waited for."""
        return self.n_processing >= self.n_slots

    def n_for_each(self) -> int:
        """Texts that one request may write at once, its own slot and those that nobody uses. Any
        thread may ask."""
        return 1 + max(0, self.n_slots - max(1, self.n_in_progress))

    @contextmanager
    def place(self, client: str = "") -> Iterator[None]:
        """A place for one request. Raises Refusal when there is none."""
        if self.n_in_progress >= self._most:
            self._make_room(client)
        self.n_in_progress += 1
        try:
            yield
        finally:
            self.n_in_progress -= 1

    @asynccontextmanager
    async def turn(self, client: str = "") -> AsyncIterator[None]:
        """The turn of a request that has a place. Raises Refusal if another takes the place."""
        if self.is_busy:
            await self._wait(client)
        else:
            self._running[client] += 1
        try:
            yield
        finally:
            self._give_back(client)

    async def _wait(self, client: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                if turn.exception() is None:
                    self._give_back(client)
            else:
                self._leave(client, turn)
            raise

    def _give_back(self, client: str) -> None:
        """End a turn, and give it to the next in line."""
        self._running[client] -= 1
        self._running += Counter()  # forget clients without requests
        while self._waiting:
            chosen = min(self._waiting, key=lambda other: self._running[other])
            turns = self._waiting.pop(chosen)
            turn = turns.popleft()
            if turns:
                self._waiting[chosen] = turns  # behind the others
            if not turn.done():  # else its client has gone, and its task has not run since
                self._running[chosen] += 1
                turn.set_result(None)
                return

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[client]

    def _make_room(self, client: str) -> None:
        """Refuse a client's latest request in line where it has two more than `client`. Raises
        Refusal if there is none."""
        n_own = len(self._waiting.get(client, ()))
        greediest = max(self._waiting, key=lambda other: len(self._waiting[other]), default=client)
        if greediest == client or len(self._waiting[greediest]) < n_own + 2:
            raise self._refusal
        turn = self._waiting[greediest][-1]
        self._leave(greediest, turn)
        if not turn.done():
            turn.set_exception(self._refusal)

    @property
    def _refusal(self) -> Exception:
        return overloaded(
            f"{self.n_in_progress} requests are under way, which is as many as this server takes",
            "queue_full",
        )


@dataclass
class ServerFigures:
    """Totals since the server was started."""

    clock: Callable[[], float] = time.monotonic
    answers: Counter[int] = field(default_factory=Counter)
    """Number of answers by HTTP status."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    saved_passes: int = 0
    generated_tokens: int = 0
    accepted_tokens: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    cancelled: int = 0
    """Number of requests whose client disconnected."""

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def count(self, result: GenerationResult) -> None:
        """Add the figures of one generation."""
        self.prompt_tokens += len(result.prompt_tokens)
        self.reused_tokens += result.reused_tokens
        self.saved_passes += result.saved_passes
        self.generated_tokens += len(result.tokens)
        self.accepted_tokens += result.speculation.accepted
        self.prompt_s += result.timings.prompt_s
        self.decode_s += result.timings.decode_s

    def lines(self, queue: Queue, paging: PagingStats, peak_bytes: int) -> Iterator[str]:
        """Lines in Prometheus's text format."""
        for name, kind, text, value in (
            ("uptime_seconds", "gauge", "Since the server began", self.clock() - self._began_s),
            ("requests_in_progress", "gauge", "Answered or waiting", queue.n_in_progress),
            ("requests_processing", "gauge", "Being answered", queue.n_processing),
            ("slots", "gauge", "Requests that are answered at once", queue.n_slots),
            ("prompt_tokens_total", "counter", "Tokens of prompts", self.prompt_tokens),
            (
                "reused_tokens_total",
                "counter",
                "Tokens of prompts that were in the models already",
                self.reused_tokens,
            ),
            (
                "saved_passes_total",
                "counter",
                "Passes that reading those tokens would have taken",
                self.saved_passes,
            ),
            ("generated_tokens_total", "counter", "Tokens written", self.generated_tokens),
            (
                "accepted_tokens_total",
                "counter",
                "Tokens written that the draft had guessed",
                self.accepted_tokens,
            ),
            ("prompt_seconds_total", "counter", "Reading prompts", self.prompt_s),
            ("decode_seconds_total", "counter", "Writing tokens", self.decode_s),
            ("clients_gone_total", "counter", "Requests given up by clients", self.cancelled),
            ("passes_total", "counter", "Passes over paged weights", paging.passes),
            ("bytes_read_total", "counter", "Weights read from storage", paging.bytes_read),
            ("stall_seconds_total", "counter", "Compute waited for weights", paging.stall_s),
            ("peak_memory_bytes", "gauge", "Peak resident memory", peak_bytes),
        ):
            yield f"# HELP edgespec_{name} {text}."
            yield f"# TYPE edgespec_{name} {kind}"
            yield f"edgespec_{name} {value}"
        yield "# HELP edgespec_answers_total Answers by HTTP status."
        yield "# TYPE edgespec_answers_total counter"
        for status, count in sorted(self.answers.items()):
            yield f'edgespec_answers_total{{status="{status}"}} {count}'
