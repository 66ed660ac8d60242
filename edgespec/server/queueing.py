"""Room for bodies, places and turns, which requests wait for, and the metrics of the server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import Request

from edgespec.completions.refusals import Refusal, overloaded
from edgespec.completions.request_limits import POOL_BYTES
from edgespec.memory import process
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


class RequestBodies:
    """Bodies of requests that arrive or wait for their turn, of `max_bytes` together."""

    def __init__(self, max_body_bytes: int, max_bytes: int, patience_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._free_bytes = max_bytes
        self._patience_s = patience_s

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytearray]:
        """Receive the body of a request; its bytes count until the block ends.

        Raises Refusal if it is compressed, too large or too slow, or if there is no room.
        """
        coding = request.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            message = f"the body has the Content-Encoding {coding!r}: send it as it is"
            raise Refusal(415, message, code="unsupported_encoding")
        announced = request.headers.get("content-length", "0")
        self._check_size(int(announced) if announced.isdecimal() else 0)
        body = bytearray()
        try:
            await self._receive(request, body)
            yield body
        finally:
            self._free_bytes += len(body)

    async def _receive(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                async for part in request.stream():
                    self._check_size(len(body) + len(part))
                    if len(part) > self._free_bytes:
                        raise overloaded("requests under way have all memory for bodies", "no_room")
                    self._free_bytes -= len(part)
                    body += part
        except TimeoutError:
            message = f"the body did not come within {self._patience_s:g} s"
            raise Refusal(408, message, code="body_too_slow") from None

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._max_body_bytes:
            raise Refusal(
                413,
                f"the body has more than {self._max_body_bytes:,} bytes: send less, or start the "
                "server with max-body in its --config file",
                code="too_large",
            )


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
    """Figures of a server since it was started, and the loss of its target."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._totals: dict[str, float] = dict.fromkeys(_TOTALS, 0)
        self.answers: Counter[int] = Counter()
        """Number of responses by HTTP status."""
        self.gone = 0
        """Number of requests whose client disconnected."""
        self.loss: Refusal | None = None
        """The loss of the target, after which nothing can be answered."""

    def count(self, result: GenerationResult) -> None:
        """Add the result of one generation."""
        for name, of in _TOTALS.items():
            self._totals[name] += of(result)

    def text(self, others: Mapping[str, float]) -> str:
        """The metrics and others in Prometheus's text format."""
        values = {
            "uptime_seconds": time.monotonic() - self._began_s,
            "peak_memory_bytes": process.peak_rss_bytes(),
            "clients_gone_total": self.gone,
            **self._totals,
            **others,
        }
        lines = []
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE edgespec_{name} {kind}", f"edgespec_{name} {value}"]
        lines.append("# TYPE edgespec_answers_total counter")
        for status, count in sorted(self.answers.items()):
            lines.append(f'edgespec_answers_total{{status="{status}"}} {count}')
        return "\n".join([*lines, ""])
