"""A session that says known words, and one that cannot be had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.rules.sampling import SamplingParams
from edgespec.session import session
from edgespec.values import GenerationResult, ModelInfo, SpeculationStats, Timings, TokenEvent

MIB = 1 << 20
PLAN = MemoryPlan(
    budget_bytes=100 * MIB,
    rows=(MemoryRow("process", "interpreter", 40 * MIB), MemoryRow("target", "weights", 50 * MIB)),
    segments=(),
    pinned=frozenset(),
    ring_bytes=0,
    paged=False,
    smallest_bytes=60 * MIB,
)
WORDS = (
    TokenEvent("one", 1, "target", 0),
    TokenEvent("", 2, "draft", 1),
    TokenEvent(" two", 3, "draft", 1),
)


class FakeGeneration:
    """Words one by one, and the result after them."""

    def __init__(self, words: Generator[TokenEvent, None, GenerationResult]) -> None:
        self._words = words

    def __iter__(self) -> Iterator[TokenEvent]:
        self.result = yield from self._words

    def __enter__(self) -> FakeGeneration:
        return self

    def __exit__(self, *error: object) -> None:
        self._words.close()


@dataclass
class FakeSession:
    """Says WORDS, or does `instead`; remembers what it was asked."""

    instead: Callable[[], None] = lambda: None
    plan: MemoryPlan = PLAN
    load_report: dict[str, float] = field(default_factory=lambda: {"total": 0.5})
    cancelled: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    is_generating: bool = False
    load_settings: Any = None
    engine_settings: EngineSettings | None = None
    prompt: str = ""
    sampling: SamplingParams | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    fails: Exception | None = None
    """Error after the words."""

    def load(self, settings, engine_settings=None, progress=None, trace=None) -> FakeSession:
        self.load_settings, self.engine_settings = settings, engine_settings
        return self

    @property
    def draft(self) -> ModelInfo | None:
        path = self.load_settings.draft
        return ModelInfo(path.stem, "llama", 64, 4096, 2, 1 << 20) if path else None

    def cancel(self) -> None:
        self.cancelled.set()

    def stream(
        self, prompt, sampling=None, max_tokens=None, stop=(), progress=None, grammar=None
    ) -> FakeGeneration:
        self.prompt, self.sampling, self.max_tokens, self.stop = prompt, sampling, max_tokens, stop
        return FakeGeneration(self._words())

    def _words(self) -> Generator[TokenEvent, None, GenerationResult]:
        self.is_generating = True
        try:
            self.instead()
            for word in WORDS:
                if not self.cancelled.is_set():
                    yield word
            if self.fails is not None:
                raise self.fails
        finally:
            self.is_generating = False
        return GenerationResult(
            text="one two",
            prompt_tokens=(7, 8),
            tokens=(1, 2, 3),
            finish_reason="cancelled" if self.cancelled.is_set() else "length",
            timings=Timings(prompt_s=0.1, first_token_s=0.2, decode_s=1.5, tokens_per_s=2.0),
            speculation=SpeculationStats(rounds=2, drafted=4, verified=3, accepted=1),
            notes=("a note",),
        )

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *error: object) -> None:
        assert not self.is_generating, "a generation has to be closed before its session"
        self.is_closed = True


def refuse_to_load(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*args: object) -> None:
        raise error

    monkeypatch.setattr(session, "load", load)
    monkeypatch.setattr(session, "plan", load)


def raising(error: BaseException) -> Callable[[], None]:
    def instead() -> None:
        raise error

    return instead
