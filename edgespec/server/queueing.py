"""Room for bodies, places and turns, which requests wait for, and the metrics of the server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from starlette.requests import Request

from edgespec.completions.refusals import Refusal, overloaded
from edgespec.completions.request_limits import POOL_BYTES
from edgespec.values import GenerationResult


class Turns:
    """The turns of requests to one model, `n_slots` of which run at once.

    Requests keep their order. They may need bytes of a pool: the first of them in line gets free
    bytes, and requests that need none may overtake it.
    """

    def __init__(self, n_slots: int = 1, pool_bytes: int = POOL_BYTES) -> None:
        """`pool_bytes` is the size of the pool, which no request exceeds."""
        self.n_slots = n_slots
        self.n_processing = 0
        """Number of running requests."""
        self._slots = asyncio.Semaphore(n_slots)
        self._free_bytes = pool_bytes
        self._next = asyncio.Lock()
        """Held by the first request in line for bytes."""
        self._freed = asyncio.Event()

    def is_busy(self, n_bytes: int = 0) -> bool:
        """True if a request that needs `n_bytes` of the pool would have to wait."""
        needs_bytes = n_bytes > 0 and (self._next.locked() or n_bytes > self._free_bytes)
        return self._slots.locked() or needs_bytes

    @asynccontextmanager
    async def turn(self, n_bytes: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of a request that has a place, and hold `n_bytes` of the pool."""
        if n_bytes:
            async with self._next:
                while n_bytes > self._free_bytes:
                    self._freed.clear()
                    await self._freed.wait()
                self._free_bytes -= n_bytes
        try:
            async with self._slots:
                self.n_processing += 1
                try:
                    yield
                finally:
                    self.n_processing -= 1
        finally:
            self._free_bytes += n_bytes
            self._freed.set()


@dataclass(slots=True)
class Queue:
    """Admission of requests: room for their bodies, and places, of which up to `max_waiting` may
    wait for their turn; others are refused."""

    max_waiting: int
    turns: Callable[[], Iterable[Turns]]
    """Gives those of all models that are loaded."""
    max_body_bytes: int = 0
    """Most bytes of one body."""
    free_bytes: int = 0
    """Room for bodies of requests that arrive or wait."""
    patience_s: float = 0
    """Seconds for a body to come."""
    n_in_progress: int = 0
    is_ending: bool = False
    """True once the server shuts down: no waiting request starts."""
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is prepared, which takes far more memory than its body."""

    @property
    def n_slots(self) -> int:
        """Number of requests that are answered at once."""
        return sum(turns.n_slots for turns in self.turns())

    @property
    def n_processing(self) -> int:
        """Number of requests that run."""
        return sum(turns.n_processing for turns in self.turns())

    def n_for_each(self, turns: Turns) -> int:
        """Number of texts that one request may generate at once: its own slot and idle ones.

        Any thread may call it.
        """
        return 1 + max(0, turns.n_slots - max(1, self.n_in_progress))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place in the queue for one request. Raises Refusal if there is none."""
        if self.n_in_progress >= max(1, self.n_slots) + self.max_waiting:
            message = "requests are under way, which is as many as this server takes"
            raise overloaded(f"{self.n_in_progress} {message}", "queue_full")
        self.n_in_progress += 1
        try:
            yield
        finally:
            self.n_in_progress -= 1

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytearray]:
        """Receive the body of a request; its bytes count until the block ends.

        Raises Refusal if it is too large or too slow, or if there is no room.
        """
        announced = request.headers.get("content-length", "0")
        self._check_size(int(announced) if announced.isdecimal() else 0)
        body = bytearray()
        try:
            await self._receive(request, body)
            yield body
        finally:
            self.free_bytes += len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                async for part in request.stream():
                    self._check_size(len(body) + len(part))
                    if len(part) > self.free_bytes:
                        raise overloaded("requests under way have all memory for bodies", "no_room")
                    self.free_bytes -= len(part)
                    body += part
        except TimeoutError:
            message = f"the body did not come within {self.patience_s:g} s"
            raise Refusal(408, message, code="body_too_slow") from None

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self.max_body_bytes:
            message = f"the body has more than {self.max_body_bytes:,} bytes: send less, or start "
            message += "the server with max-body in its --config file"
            raise Refusal(413, message, code="too_large")


_TOTALS: dict[str, Callable[[GenerationResult], float]] = {
    "prompt_tokens_total": lambda result: len(result.prompt_tokens) - result.unread_tokens,
    "reused_tokens_total": lambda result: result.reused_tokens,
    "generated_tokens_total": lambda result: len(result.tokens),
    "accepted_tokens_total": lambda result: result.speculation.accepted,
    "prompt_seconds_total": lambda result: result.timings.prompt_s,
    "decode_seconds_total": lambda result: result.timings.decode_s,
}
"""Value of each total over all generations."""


class ServerFigures:
    """Figures of a server since it was started, and the loss of its target."""

    def __init__(self) -> None:
        self.totals = defaultdict[str, float](
            float, dict.fromkeys([*_TOTALS, "clients_gone_total"], 0)
        )
        """Totals over all generations, of clients who disconnected, and of answers by status."""
        self.loss: Refusal | None = None
        """The loss of the target, after which nothing can be answered."""

    def count(self, result: GenerationResult) -> None:
        """Add the result of one generation."""
        for name, of in _TOTALS.items():
            self.totals[name] += of(result)

    def text(self, others: Mapping[str, float]) -> str:
        """The metrics and others in Prometheus's text format."""
        values, lines = {**others, **self.totals}, []
        for family, names in groupby(values, lambda name: name.partition("{")[0]):
            kind = "counter" if family.endswith("_total") else "gauge"
            lines += [f"# TYPE edgespec_{family} {kind}"]
            lines += [f"edgespec_{name} {values[name]}" for name in names]
        return "\n".join([*lines, ""])
