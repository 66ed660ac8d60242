"""The queue of requests, and the figures that monitoring reads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edgespec.completions.refusals import too_many_requests
from edgespec.values import GenerationResult, PagingStats


class Queue:
    """One request is answered and `most_waiting` wait; a further one is refused."""

    def __init__(self, most_waiting: int) -> None:
        self._most = 1 + most_waiting
        self.n_in_progress = 0
        self.is_ending = False
        """True once the server shuts down: no waiting request begins."""
        self.preparing = asyncio.Lock()
        """Held while a request is prepared, which takes far more memory than its bytes."""
        self.turn = asyncio.Lock()
        """Held by the request that is answered; others get it in order of arrival."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request. Raises Refusal when there is none."""
        if self.n_in_progress >= self._most:
            raise too_many_requests(
                f"{self.n_in_progress} requests are under way, which is as many as this server "
                "takes",
                "queue_full",
            )
        self.n_in_progress += 1
        try:
            yield
        finally:
            self.n_in_progress -= 1


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

    def lines(self, n_in_progress: int, paging: PagingStats, peak_bytes: int) -> Iterator[str]:
        """Lines in Prometheus's text format."""
        for name, kind, text, value in (
            ("uptime_seconds", "gauge", "Since the server began", self.clock() - self._began_s),
            ("requests_in_progress", "gauge", "Answered or waiting", n_in_progress),
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
