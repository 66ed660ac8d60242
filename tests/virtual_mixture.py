"""Mixtures on a virtual clock: rows choose experts by rules, misses are reads.

The cache holds what `LeastLikely` keeps of them, so that what a guess costs is what it would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgespec.engine.settings import EngineSettings
from edgespec.paging.eviction import LeastLikely
from edgespec.rules.sampling import SamplingParams
from edgespec.values import PassReport
from engine_cases import AskedEngine as Engine
from fake_model import Language
from virtual_clock import MB_PER_S, Clock, Machine, Points
from virtual_pair import Measured, VirtualDraft, VirtualTarget, put_on
from virtual_text import VirtualText

N_LAYERS = 6
EXPERTS_BYTES = 1.8e9
COMPUTE: Points = ((1, 0.03), (2, 0.05), (8, 0.13), (32, 0.4), (96, 1.1))

Context = tuple[int, ...]


@dataclass(frozen=True)
class Routing:
    """Choices of experts by context."""

    n_experts: int = 128
    """Experts of a layer."""
    n_used: int = 8
    kept: float = 0.0
    """Share of its predecessor's experts that a token chooses again."""
    topic: int = 0
    """Experts of a layer among which the tokens of a passage choose; 0 for all."""
    hot: int = 0
    """Experts of a layer that are chosen nine times of ten, whatever the token."""
    known: dict[Context, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def choices(self, context: Context) -> np.ndarray:
        """Experts that the last token chooses, int64 [layers, used]."""
        if context not in self.known:
            self.known[context] = self._chosen(context)
        return self.known[context]

    def _chosen(self, context: Context) -> np.ndarray:
        random = np.random.default_rng([len(context), *context[-4:]])
        passage = np.random.default_rng(len(context) // 24).permutation(self.n_experts)
        ranks = random.random((N_LAYERS, self.topic or self.n_experts))
        ranks[:, : self.hot] /= 9.0 * (self.n_experts - self.hot) / max(1, self.hot)
        chosen = np.argsort(ranks, axis=1)[:, : self.n_used]
        if self.topic:
            chosen = passage[chosen]
        if self.kept and len(context) > 1:
            before = self.choices(context[:-1])
            for layer in range(N_LAYERS):
                again = before[layer][random.random(self.n_used) < self.kept]
                others = [expert for expert in chosen[layer] if expert not in again]
                chosen[layer] = [*again, *others][: self.n_used]
        return chosen


class VirtualExperts:
    """Reads of a cache that holds a share of all experts."""

    def __init__(self, routing: Routing, share: float) -> None:
        self._routing = routing
        self._capacity = int(share * N_LAYERS * routing.n_experts)
        self._eviction = LeastLikely([routing.n_experts] * N_LAYERS)
        self._cached: set[tuple[int, int]] = set()
        self.n_read = 0

    def read_s(self, contexts: Sequence[Context]) -> tuple[float, float]:
        """Seconds in which a pass over these rows waits for experts, and for those of its first
        row."""
        choices = np.stack([self._routing.choices(context) for context in contexts])
        n_before, n_first = self.n_read, 0
        for layer in range(N_LAYERS):
            self._eviction.use(layer, choices[:, layer])
            acquired = {(layer, expert) for expert in np.unique(choices[:, layer]).tolist()}
            missing = acquired - self._cached
            n_first += len(missing & {(layer, expert) for expert in choices[0, layer].tolist()})
            for expert in sorted(missing):
                self._add(expert, acquired)
        expert_s = EXPERTS_BYTES / (N_LAYERS * self._routing.n_experts) / MB_PER_S
        return (self.n_read - n_before) * expert_s, n_first * expert_s

    def _add(self, missing: tuple[int, int], acquired: set[tuple[int, int]]) -> None:
        self.n_read += 1
        if len(self._cached) >= self._capacity:
            victim = self._eviction.victim(lambda *key: key not in acquired)
            if victim is None:
                return  # read for one product only
            self._eviction.remove(*victim)
            self._cached.remove(victim)
        self._eviction.add(*missing)
        self._cached.add(missing)


class MixtureTarget(VirtualTarget):
    """A target whose rows choose experts."""

    def __init__(self, language: Language, clock: Clock, experts: VirtualExperts) -> None:
        self._rows: list[Context] = []
        self.prompt_s = 0.0

        def watched(context: Context) -> np.ndarray:
            self._rows.append(context)
            return language(context)

        super().__init__(watched, clock)
        self._experts = experts

    def _spent(self, n_tokens: int) -> PassReport:
        is_prompt = not self._rows
        text = tuple(self.committed)
        rows = self._rows or [text[: n + 1] for n in range(len(text) - n_tokens, len(text))]
        self._rows = []
        report = super()._spent(n_tokens)
        choice_s, first_s = self._experts.read_s(rows)
        self._clock.now += choice_s
        if is_prompt:
            self.prompt_s += report.wall_s + choice_s
        return replace(
            report,
            wall_s=report.wall_s + choice_s,
            stall_s=report.stall_s + choice_s,
            choice_stall_s=choice_s,
            first_row_stall_s=first_s,
        )


@dataclass(frozen=True)
class MixtureRun:
    """One text on a mixture."""

    measured: Measured
    n_read: int
    """Experts read, those of the prompt included."""


def run_mixture(
    routing: Routing,
    share: float,
    text: VirtualText,
    n_tokens: int,
    *,
    drafts: bool = True,
    read_s: float = 0.0,
    **rules: Any,
) -> MixtureRun:
    """A text on a mixture of which `share` of the experts are in memory; a pass reads weights that
    all tokens use in `read_s`."""
    machine = Machine(COMPUTE, 0.004, read_s=read_s, used_share=routing.n_used / routing.n_experts)
    clock, experts = Clock(machine), VirtualExperts(routing, share)
    target = MixtureTarget(text.target, clock, experts)
    draft = VirtualDraft(text.draft, clock) if drafts else None
    with Engine(target, draft, EngineSettings(**{"lookup": False, **rules}), clock) as engine:
        put_on(clock, engine)
        events = engine.generate(text.prompt(0), SamplingParams(temperature=0.0, seed=0), n_tokens)
        try:
            while True:
                next(events)
        except StopIteration as end:
            seconds = clock.now - target.prompt_s
            return MixtureRun(Measured(seconds, end.value), experts.n_read)
