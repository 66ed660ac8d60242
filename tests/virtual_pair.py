"""A pair of models on a virtual clock.

The real engine runs on fake models. Only calls of models take time, by formula. Texts may begin
with what others taught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.engine.slot import choose_slot
from edgespec.files.json_file import JsonFile
from edgespec.memory.needs import FOREST_SIZE, FOREST_TEXTS, TREE_SIZES
from edgespec.ports import PassPart
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.values import GenerationResult, PagingStats, PassReport
from engine_cases import AskedEngine as Engine
from engine_cases import finish, forget
from fake_model import FakeModel, Language
from virtual_clock import Clock, Machine, slowed
from virtual_text import N_VOCAB, VirtualText

T = TypeVar("T")


class VirtualTarget(FakeModel):
    """The target; a prompt takes what a pass over its rows does."""

    def __init__(
        self, language: Language, clock: Clock, n_texts: int = 1, max_nodes: int | None = None
    ) -> None:
        cost, n_ctx = self._spent, 4096
        n_nodes = max_nodes or (FOREST_SIZE if n_texts >= FOREST_TEXTS else TREE_SIZES[0])
        super().__init__(
            language, N_VOCAB, n_ctx=n_ctx, max_nodes=n_nodes, n_texts=n_texts, cost=cost
        )
        self._clock = clock
        self.timing_s = 0.0
        """Seconds of passes that were made to time them."""
        self.info = replace(
            self.info, size_bytes=1 << 30, used_share=clock.machine.used_share, n_threads=2
        )

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        begun, is_round = self._clock.now, self._clock.running is not None
        logits = super()._evaluate(parts)
        if not is_round and len(parts) == 1:
            self.timing_s += self._clock.now - begun
        return logits

    def paging(self) -> PagingStats:
        is_paged = self._clock.machine.read_s > 0
        return (
            PagingStats(segments=2, pinned_bytes=5, streamed_bytes=5 if is_paged else 0)
            if (is_paged)
            else PagingStats()
        )

    def _spent(self, n_tokens: int) -> PassReport:
        if self._clock.running is not None:
            return self._clock.end_pass(n_tokens)
        total = PassReport(passes=0, first_row_stall_s=0.0)
        batch = self.info.prompt_batch
        for begin in range(0, n_tokens, batch):  # of a prompt, which is committed by now
            n_rows = min(batch, n_tokens - begin)
            self._clock.n_context = max(0.0, self.committed_of(0) - n_tokens + begin + n_rows / 2)
            self._clock.begin_pass(n_rows)
            one = self._clock.end_pass(n_rows)
            sums = {
                each.name: getattr(total, each.name) + getattr(one, each.name)
                for each in fields(one)
            }
            total = PassReport(**sums)
        self._clock.n_context = self.committed_of(0)
        return total


class VirtualDraft(FakeModel):
    def __init__(self, language: Language, clock: Clock, n_texts: int = 1) -> None:
        cost, n_ctx = clock.draft, 4096
        super().__init__(language, N_VOCAB, n_ctx=n_ctx, max_nodes=33, n_texts=n_texts, cost=cost)
        self.info = replace(self.info, size_bytes=int(clock.machine.draft_share * (1 << 30)))


class VirtualWorker:
    """Stands in for the engine's thread: what runs beside a pass takes turns with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @contextmanager
    def running(self, call: Callable[[], T], cancel: Callable[[], None]) -> Iterator[_Call[T]]:
        yield _Call(call, self._clock)

    def close(self) -> None:
        """There is no thread."""


@dataclass
class _Call:
    call: Callable[[], Any]
    clock: Clock
    answers: list[Any] = field(default_factory=list)

    def __class_getitem__(cls, item: object) -> type[_Call]:
        return cls

    def __post_init__(self) -> None:
        if isinstance(self.call, partial) and len(self.call.args) == 1:
            self.clock.begin_pass(sum(part.n_rows for part in self.call.args[0]))

    def done(self) -> bool:
        going = self.clock.running
        return bool(self.answers) or going is None or going.progress >= 1 - 1e-9

    def exception(self, timeout: float) -> None:
        """Make the call, as a thread does meanwhile."""
        self.answers.append(self.call())

    def result(self) -> Any:
        return self.answers[0] if self.answers else self.call()


def put_on(clock: Clock, engine: Engine) -> None:
    """Let the passes of the engine's rounds take the clock's time."""
    loop = cast(Any, engine)
    loop.worker = VirtualWorker(clock)
    loop.target = TimedTarget(loop.target, clock)


class TimedTarget:
    """A target whose passes begin on the clock, unless they have begun in a worker."""

    def __init__(self, target: FakeModel, clock: Clock) -> None:
        self._target, self._clock = target, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        if self._clock.running is None:
            self._clock.begin_pass(sum(part.n_rows for part in parts))
        return self._target.evaluate(parts)


@dataclass(frozen=True)
class Measured:
    """One text on one machine."""

    seconds: float
    """After the target has read the prompt and timed its passes; the draft's reading counts."""
    result: GenerationResult = field(repr=False)
    timing_s: float = 0.0
    """Seconds of passes that were made to time them."""

    @property
    def tokens_per_s(self) -> float:
        return len(self.result.tokens) / self.seconds


def run(
    machine: Machine,
    text: VirtualText,
    n_tokens: int,
    *,
    drafts: bool = True,
    temperature: float = 0.0,
    n_texts: int = 1,
    memory: JsonFile | None = None,
    **rules: Any,
) -> list[Measured]:
    """Some texts, one after the other, by one engine."""
    clock = Clock(machine)
    target = VirtualTarget(text.target, clock)
    draft = VirtualDraft(text.draft, clock) if drafts else None
    settings = EngineSettings(**{"lookup": False, **rules})
    measured = []
    with Engine(target, draft, settings, clock, state=memory) as engine:
        put_on(clock, engine)
        for n in range(n_texts):
            forget(engine)
            begun, timing_s = clock.now, target.timing_s
            prompt_s = max(machine.read_s, machine.compute_s(text.n_prompt - 1))
            prompt_s += machine.choice_s(text.n_prompt - 1)
            sampling = SamplingParams(temperature=temperature, seed=n)
            events = engine.generate(text.prompt(n), sampling, n_tokens)
            try:
                while True:
                    next(events)
            except StopIteration as end:
                timing_s = target.timing_s - timing_s
                seconds = clock.now - begun - prompt_s - timing_s
                measured.append(Measured(seconds, end.value, timing_s))
    return measured


def turn_after_a_short_one(
    machine: Machine, text: VirtualText, n_prompt: int, drafts: bool
) -> float:
    """Seconds of the rounds of 48 tokens after a prompt of so many, by an engine that has written a
    text after one of 100 before."""
    clock = Clock(machine)
    target = VirtualTarget(text.target, clock)
    draft = VirtualDraft(text.draft, clock) if drafts else None
    with Engine(target, draft, EngineSettings(lookup=False), clock) as engine:
        put_on(clock, engine)
        for length in (100, n_prompt):
            forget(engine)
            prompt = [n % N_VOCAB for n in range(length)]
            result = finish(engine.generate(prompt, SamplingParams(), 48))
    return sum(cost.wall_s for cost in result.speculation.round_costs)


class Kept(JsonFile):
    """A file in memory: the next engine recalls what earlier ones taught."""

    def __init__(self) -> None:
        self._content: object = None

    def read(self) -> object:
        return self._content

    def write(self, content: object) -> None:
        self._content = content


def warm(
    machine: Machine,
    text: VirtualText,
    n_tokens: int,
    *,
    slower: float = 1.0,
    before: VirtualText | None = None,
    **rules: Any,
) -> Measured:
    """A text after two others, each by an engine of its own: those were of the kind `before`, on a
    machine so many times slower."""
    memory, earlier = Kept(), slowed(machine, slower)
    for n in (1, 2):
        other = replace(before or text, seed=text.seed + n)
        run(replace(earlier, seed=machine.seed + n), other, n_tokens, memory=memory, **rules)
    return run(machine, text, n_tokens, memory=memory, **rules)[0]


def together(
    machine: Machine,
    text: VirtualText,
    n_tokens: int,
    n_texts: int,
    *,
    drafts: bool = True,
    temperature: float = 0.0,
    staggered: bool = False,
    first: int = 0,
    max_nodes: int | None = None,
    **rules: Any,
) -> tuple[float, list[GenerationResult]]:
    """Tokens a second of some texts at once, prompts included, and their results. They begin
    together or, `staggered`, each with the pass after the first token of the one before."""
    clock = Clock(machine)
    target = VirtualTarget(text.target, clock, n_texts, max_nodes)
    draft = VirtualDraft(text.draft, clock, n_texts) if drafts else None
    settings = EngineSettings(**{"lookup": False, **rules})
    with Engine(target, draft, settings, clock) as engine:
        put_on(clock, engine)
        requests = []
        for n in range(first, first + n_texts):
            sampling = SamplingParams(temperature=temperature, seed=n)
            terms = TextRequest(tuple(text.prompt(n)), sampling, n_tokens)
            requests.append(engine.admit(terms))
        if staggered:
            going = [engine.ask(request) for request in requests]
            while going:
                going = [events for events in going if next(events, None) is not None]
        else:
            _drive_all(cast(Any, engine), requests)
    return n_texts * n_tokens / clock.now, [request.result() for request in requests]


def _drive_all(engine: Any, texts: Sequence[Any]) -> None:
    """Passes until all texts are written, all of which are at work before the first pass."""
    at_work = [*texts]
    for text in at_work:
        text.slot = choose_slot(engine.slots, text)
        engine.begin(text)
        text.slot.is_free, text.slot.begun = False, engine.clock()
    while at_work:
        engine.step(at_work)
        for text in [*at_work]:
            text.events.clear()
            assert text.failure is None
            if not text.is_at_work:
                engine.end(text)
                at_work.remove(text)
