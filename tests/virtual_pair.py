"""A pair of models on a virtual clock: passes and draft steps of given costs.

The real engine runs on fake models. Only calls of models take time, by formula; drafting beside a
pass shares the cores with it. A machine may be noisy, and texts may begin with what others taught.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from edgespec.engine.drafting.remembering import Learnt, Memory, renewed
from edgespec.engine.engine import Engine
from edgespec.engine.request import ActiveRequest
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.ports.text_request import TextRequest
from edgespec.values import GenerationResult, PagingStats, PassReport
from fake_model import FakeModel, Language

T = TypeVar("T")
Points = tuple[tuple[float, float], ...]

N_VOCAB = 64
PROMPT_TOKENS = 35
FOREIGN = 0.25
"""Share of a prompt's tokens that the target would hardly have written."""
PASSAGE = 16
"""Tokens of a text that are about equally hard to guess."""
MB_PER_S = 300e6


@dataclass(frozen=True)
class Machine:
    """What passes and draft steps cost, in seconds."""

    compute: Points
    """Of a pass, by its rows."""
    step_s: float
    read_s: float = 0.0
    """What a pass reads of storage, beside its computing."""
    draft_share: float = 0.05
    """The draft's size, as a share of the target's."""
    burst: float = 1.0
    """Times as long as passes and draft steps take in four rounds of twelve: other work."""
    noise: float = 0.0
    """Share of passes that take 1.5 to 3 times as long, and draft steps before them."""
    slow_start: float = 1.0
    """Times as long as the first pass after that over the prompt takes."""
    seed: int = 0
    """Of the noise."""
    used_share: float = 1.0
    all_experts_s: float = 0.0
    """Of a mixture: what a token uses, and reading all experts."""
    latency_s: float = 0.0
    """Of a pass, besides: the way to another machine and back."""

    def compute_s(self, n_rows: int) -> float:
        x, y = zip(*self.compute, strict=True)
        beyond = max(0.0, n_rows - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        return float(np.interp(n_rows, x, y)) + beyond + self.latency_s

    def choice_s(self, n_rows: int) -> float:
        return self.all_experts_s * float(1 - (1 - self.used_share) ** (n_rows**0.75))

    def draft_s(self, n_rows: int) -> float:
        return self.step_s * (0.75 + 0.25 * n_rows)


@dataclass
class Pass:
    """A pass of the target as it goes on."""

    read_s: float
    compute_s: float
    begun: float
    progress: float = 0.0
    stall_s: float = 0.0

    def advance(self, seconds: float, share: float) -> None:
        """Go on for so long with `share` of the cores."""
        rate = self.rate(share)
        self.progress += rate * seconds
        self.stall_s += max(0.0, 1 - self.compute_s * rate / share) * seconds

    def rate(self, share: float) -> float:
        return 1 / max(self.read_s, self.compute_s / share, 1e-9)

    def left_s(self, share: float) -> float:
        return max(0.0, 1 - self.progress) / self.rate(share)


@dataclass
class Clock:
    """Tells the virtual time, and lets models spend it."""

    machine: Machine
    now: float = 0.0
    n_passes: int = 0
    running: Pass | None = None
    beside_s: float = 0.0

    def __call__(self) -> float:
        return self.now

    def draft(self, n_rows: int) -> PassReport:
        """A draft step, alone or beside a pass that gets half of the cores, if it needs them."""
        begun, work_s = self.now, self.slowness * self.machine.draft_s(n_rows)
        if self.running is not None and self.running.progress < 1:
            going = self.running
            own = 1 - going.compute_s * going.rate(0.5)
            beside_s = min(work_s / own, going.left_s(0.5))
            going.advance(beside_s, 0.5)
            self.now += beside_s
            work_s -= own * beside_s
        self.now += work_s
        return PassReport(wall_s=self.now - begun, n_tokens=n_rows)

    @property
    def slowness(self) -> float:
        """Times as long as everything takes now."""
        machine, n = self.machine, self.n_passes
        times = machine.burst if n % 12 in (4, 5, 6, 7) else 1.0
        if chance(machine.seed, "noise", n) < machine.noise:
            times *= 1.5 + 1.5 * chance(machine.seed, "times", n)
        return times * (machine.slow_start if n == 1 else 1.0)

    def begin_pass(self, n_rows: int) -> None:
        slow, self.n_passes = self.slowness, self.n_passes + 1
        read_s, compute_s = self.machine.read_s, self.machine.compute_s(n_rows)
        self.running = Pass(slow * read_s, slow * compute_s, self.now)

    def end_pass(self, n_rows: int) -> PassReport:
        going = self.running
        assert going is not None
        left_s = going.left_s(1.0)
        going.advance(left_s, 1.0)
        choice_s = self.machine.choice_s(n_rows)
        self.now += left_s + choice_s
        self.running = None
        return PassReport(
            wall_s=self.now - going.begun,
            stall_s=going.stall_s + choice_s,
            choice_stall_s=choice_s,
            bytes_read=int(self.machine.read_s * MB_PER_S),
            read_s=going.read_s,
            n_tokens=n_rows,
        )


class VirtualTarget(FakeModel):
    """The target; a prompt takes what a pass over its rows does."""

    def __init__(self, language: Language, clock: Clock, n_texts: int = 1) -> None:
        cost, n_ctx = self._spent, 4096
        super().__init__(language, N_VOCAB, n_ctx=n_ctx, max_nodes=97, n_texts=n_texts, cost=cost)
        self._clock = clock
        self.info = replace(
            self.info,
            size_bytes=1 << 30,
            used_share=clock.machine.used_share,
            n_threads=2,
            latency_s=clock.machine.latency_s,
        )

    def paging(self) -> PagingStats:
        is_paged = self._clock.machine.read_s > 0
        return (
            PagingStats(segments=2, pinned_bytes=5, streamed_bytes=5 if is_paged else 0)
            if (is_paged)
            else PagingStats()
        )

    def _spent(self, n_tokens: int) -> PassReport:
        if self._clock.running is None:
            self._clock.begin_pass(n_tokens)
        return self._clock.end_pass(n_tokens)


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

    def run(self, call: Callable[[], T], *_: object) -> T:
        return call()

    def close(self) -> None:
        """There is no thread."""


@dataclass
class _Call:
    call: Callable[[], Any]
    clock: Clock

    def __class_getitem__(cls, item: object) -> type[_Call]:
        return cls

    def __post_init__(self) -> None:
        if isinstance(self.call, partial) and len(self.call.args) == 1:
            self.clock.begin_pass(sum(part.n_rows for part in self.call.args[0]))

    @property
    def done(self) -> bool:
        going = self.clock.running
        return going is None or going.progress >= 1 - 1e-9

    def result(self, check: object = None) -> Any:
        return self.call()


# Languages: the draft knows how often it is right


def chance(*what: object) -> float:
    """A number from 0 to 1 that depends on `what` alone."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True)
class Text:
    """A text and how well it can be guessed: some passages are easy, others hard."""

    right: float
    """Share of the draft's first guesses that are the target's most probable token."""
    seed: int = 0
    sure: float = 12.0
    """Logit of the target's most probable token above all others; low for a warm text."""
    easy: float = 0.97
    """Share of first guesses that are right in easy passages."""
    hard: float = 0.35

    def target(self, context: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(N_VOCAB, np.float32)
        row[self._next(context)] = self.sure
        for n in range(3):
            row[self._other(context, n)] += 0.35 * self.sure
        return row

    def draft(self, context: tuple[int, ...]) -> np.ndarray:
        """Says how sure it is and is right as often, but for a draft that is never right."""
        right = self._right(context)
        u = chance(self.seed, "draft", context[-4:])
        best, second = self._next(context), self._other(context, 0)
        if self.right == 0:
            best, second = self._other(context, 5), self._other(context, 6)
        elif u > right:
            best, second = second, best if chance(u) < 0.6 else self._other(context, 5)
        p = np.full(N_VOCAB, 0.05 * (1 - right) / N_VOCAB + 1e-5)
        p[best] += right
        p[second] += 0.6 * (1 - right)
        return np.log(p).astype(np.float32)

    def prompt(self, n: int) -> list[int]:
        """Words of somebody who writes much as the target does at temperature 1."""
        tokens = [n % N_VOCAB]
        while len(tokens) < PROMPT_TOKENS:
            noise = [chance(self.seed, n, len(tokens), token) for token in range(N_VOCAB)]
            race = -np.log(noise) / np.exp(self.target(tuple(tokens)))
            is_foreign = chance(self.seed, n, len(tokens)) < FOREIGN
            tokens.append(self._other(tuple(tokens), 7) if is_foreign else int(race.argmin()))
        return tokens

    def _right(self, context: tuple[int, ...]) -> float:
        """Tokens of even number stand in easy passages, the others in hard ones."""
        if self.right == 0:
            return 0.8
        return self.easy if context[-1] % 2 == 0 else self.hard

    def _next(self, context: tuple[int, ...]) -> int:
        easy_share = (self.right - self.hard) / (self.easy - self.hard) if self.right else 0.5
        leaves = (1 - easy_share if context[-1] % 2 == 0 else easy_share) * 2 / PASSAGE
        changes = chance(self.seed, "changes", context[-4:]) < leaves
        passage = (context[-1] + changes) % 2
        return 2 * int(chance(self.seed, context[-4:]) * (N_VOCAB // 2)) + passage

    def _other(self, context: tuple[int, ...], n: int) -> int:
        token = int(chance(self.seed, n, context[-4:]) * N_VOCAB)
        return token if token != self._next(context) else (token + 1) % N_VOCAB


@dataclass(frozen=True)
class Measured:
    """One text on one machine."""

    seconds: float
    """After the target has read the prompt; the draft's reading of it counts."""
    result: GenerationResult = field(repr=False)

    @property
    def tokens_per_s(self) -> float:
        return len(self.result.tokens) / self.seconds


def run(
    machine: Machine,
    text: Text,
    n_tokens: int,
    *,
    drafts: bool = True,
    temperature: float = 0.0,
    n_texts: int = 1,
    memory: Memory | None = None,
    **rules: Any,
) -> list[Measured]:
    """Some texts, one after the other, by one engine."""
    clock = Clock(machine)
    target = VirtualTarget(text.target, clock)
    draft = VirtualDraft(text.draft, clock) if drafts else None
    settings = EngineSettings(**{"lookup": False, **rules})
    measured = []
    with Engine(target, draft, settings, clock, memory=memory) as engine:
        cast(Any, engine)._passes.worker = VirtualWorker(clock)
        for n in range(n_texts):
            engine.forget()
            begun = clock.now
            prompt_s = max(machine.read_s, machine.compute_s(PROMPT_TOKENS - 1))
            prompt_s += machine.choice_s(PROMPT_TOKENS - 1)
            sampling = SamplingParams(temperature=temperature, seed=n)
            events = engine.generate(text.prompt(n), sampling, n_tokens)
            try:
                while True:
                    next(events)
            except StopIteration as end:
                measured.append(Measured(clock.now - begun - prompt_s, end.value))
    return measured


@dataclass
class Kept:
    """Implements `Memory`: what engines taught, until the next one recalls it."""

    learnt: Learnt = field(default_factory=dict)

    def recall(self) -> Learnt:
        return self.learnt

    def keep(self, learnt: Learnt) -> None:
        self.learnt = renewed(self.learnt, learnt)


def warm(
    machine: Machine,
    text: Text,
    n_tokens: int,
    *,
    slower: float = 1.0,
    before: Text | None = None,
    **rules: Any,
) -> Measured:
    """A text after two others, each by an engine of its own: those were of the kind `before`, on a
    machine so many times slower."""
    memory, earlier = Kept(), slowed(machine, slower)
    for n in (1, 2):
        other = replace(before or text, seed=text.seed + n)
        run(replace(earlier, seed=machine.seed + n), other, n_tokens, memory=memory, **rules)
    return run(machine, text, n_tokens, memory=memory, **rules)[0]


def slowed(machine: Machine, times: float) -> Machine:
    """The machine with slower cores; its storage is what it was."""
    return replace(machine, compute=scaled(machine.compute, times), step_s=times * machine.step_s)


def together(
    machine: Machine,
    text: Text,
    n_tokens: int,
    n_texts: int,
    *,
    drafts: bool = True,
    temperature: float = 0.0,
    staggered: bool = False,
    **rules: Any,
) -> tuple[float, list[GenerationResult]]:
    """Tokens a second of some texts at once, prompts included, and their results. They begin
    together or, `staggered`, each with the pass after the first token of the one before."""
    clock = Clock(machine)
    target = VirtualTarget(text.target, clock, n_texts)
    draft = VirtualDraft(text.draft, clock, n_texts) if drafts else None
    settings = EngineSettings(**{"lookup": False, **rules})
    with Engine(target, draft, settings, clock) as engine:
        cast(Any, engine)._passes.worker = VirtualWorker(clock)
        cast(Any, engine)._driver = VirtualWorker(clock)
        requests = []
        for n in range(n_texts):
            sampling = SamplingParams(temperature=temperature, seed=n)
            terms = TextRequest(tuple(text.prompt(n)), sampling, n_tokens)
            requests.append(engine.admit(terms))
        if staggered:
            going = [engine.run(request) for request in requests]
            while going:
                going = [events for events in going if next(events, None) is not None]
        else:
            _drive_all(cast(Any, engine), requests)
    return n_texts * n_tokens / clock.now, [request.result() for request in requests]


def _drive_all(engine: Any, requests: Sequence[ActiveRequest]) -> None:
    """Passes until all texts are written, all of which are at work before the first pass."""
    texts = [engine._begin(request) for request in requests]
    while texts:
        engine._drive(texts[0])
        for text in texts:
            text.events.clear()
            text.raise_failure()
            if text.request.transcript.is_finished:
                engine._end(text)
        texts = [text for text in texts if not text.request.transcript.is_finished]


FIXED_SIZES = (1, 3, 7, 12, 24, 64)


def best_fixed(machine: Machine, text: Text, n_tokens: int, temperature: float = 0.0) -> float:
    """Tokens a second of the best line or tree of a fixed size, or of none, known in hindsight."""
    rates = [run(machine, text, n_tokens, drafts=False, temperature=temperature)[0].tokens_per_s]
    for n in FIXED_SIZES:
        for pacer in ("linear", "best-first"):
            fixed = run(
                machine,
                text,
                n_tokens,
                temperature=temperature,
                pacer=pacer,
                fallback="full",
                draft_max=n,
                step_aside=False,
                overlap=False,
            )
            rates.append(fixed[0].tokens_per_s)
    return max(rates)


def scaled(points: Points, factor: float) -> Points:
    return tuple((n, factor * seconds) for n, seconds in points)


AMD: Points = ((1, 0.040), (2, 0.074), (8, 0.160), (13, 0.233), (96, 1.45))
REPACKED: Points = ((1, 0.012), (2, 0.024), (5, 0.030), (8, 0.036), (12, 0.049), (32, 0.13))
GGUF: Points = ((1, 0.06), (2, 0.10), (8, 0.25), (32, 0.70), (96, 2.0))
TINY: Points = ((1, 0.004), (2, 0.0055), (8, 0.012), (32, 0.035), (96, 0.1))

MACHINES: dict[str, Machine] = {
    "resident": Machine(AMD, 0.002),
    "resident, repacked": Machine(REPACKED, 0.001, draft_share=0.01),
    "resident, large draft": Machine(TINY, 0.002, draft_share=0.5),
    "resident, tiny": Machine(TINY, 0.0004, draft_share=0.1),
    "30 %, 300 MB/s": Machine(GGUF, 0.005, 2.33),
    "50 %, 300 MB/s": Machine(GGUF, 0.005, 1.67),
    "80 %, 300 MB/s": Machine(GGUF, 0.005, 0.67),
    "30 %": Machine(GGUF, 0.005, 0.47),
    "50 %": Machine(GGUF, 0.005, 0.33),
    "80 %": Machine(GGUF, 0.005, 0.13),
    "50 %, 1 thread": Machine(scaled(GGUF, 2), 0.009, 0.33),
    "80 %, 300 MB/s, 1 thread": Machine(scaled(GGUF, 2), 0.009, 0.67),
    "resident, tiny, 20 ms away": Machine(TINY, 0.0004, draft_share=0.1, latency_s=0.02),
    "mixture": Machine(scaled(GGUF, 0.4), 0.005, 0.2, used_share=0.25, all_experts_s=1.2),
}
TEXTS = {"good": Text(0.8), "medium": Text(0.5), "useless": Text(0.0)}
LENGTHS: Sequence[int] = (32, 64, 128, 512)
