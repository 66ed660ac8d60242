"""Predicts tokens a second for a choice of settings, from a memory plan and what was measured.

Arithmetic on `theory`'s formulas: it measures nothing and knows no model library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgespec import theory
from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan
from edgespec.options import option_names
from edgespec.tuning.measurements import PassTiming, TreeYield, Written
from edgespec.tuning.offloads import Offload

USUAL_RULES = EngineSettings()
LEAST_REACHED = 0.3
"""A run that came less near, or went beyond by more, was disturbed: it says nothing."""
STALLED_SHARE = 0.1
"""A pass that waited for storage for more of its time was as long as its reads."""
Places = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings that tuning chooses among. None of them changes the text."""

    draft: Path | None
    threads: int
    threads_draft: int | None = None
    draft_max: int | None = None
    """None: what the plan chooses."""
    overlap: bool = True
    lookup: bool | None = None
    """None: beside a draft."""
    rules: EngineSettings = USUAL_RULES
    """Of the engine, those that are not chosen among."""
    offload: Offload | None = None
    """Of the draft: with which a GPU computes it."""

    @property
    def guesses(self) -> bool:
        return self.draft is not None or bool(self.lookup)

    @property
    def label(self) -> str:
        """For people: what is drafted with."""
        if self.draft is None:
            return "guesses from the text alone" if self.guesses else "no draft"
        size = f" with {self.draft_max}" if self.draft_max else ""
        return self.draft.name + size + (f" {self.offload.says}" if self.offload else "")

    def load(self, settings: LoadSettings) -> LoadSettings:
        """`settings` with this choice."""
        given = without_draft(settings) if self.draft is None else settings.as_given()
        given |= {"threads": self.threads}
        if self.draft is not None:
            given |= {"draft": self.draft, "threads_draft": self.threads_draft}
            given |= dict(self.offload.given) if self.offload else {}
        return LoadSettings.model_validate(given)

    @property
    def engine(self) -> EngineSettings:
        """Runs of it remember nothing, so that all begin alike."""
        pins = self.draft_max is not None
        return replace(
            self.rules,
            draft_max=self.draft_max or USUAL_RULES.draft_max,
            pins_draft_max=pins,
            overlap=self.overlap,
            lookup=self.lookup,
            remember=False,
        )


@dataclass(frozen=True, slots=True)
class Speeds:
    """What was measured, as the prediction takes it."""

    disk_bytes_per_s: float
    """That passes reach; infinite where nothing was read."""
    compute: Mapping[int, Places]
    """By the target's threads, seconds of a pass's computing at numbers of nodes."""
    yields: Mapping[tuple[Path, int], tuple[TreeYield, ...]] = field(default_factory=dict)
    """By draft and its threads."""
    offloaded: Mapping[tuple[Path, Offload], tuple[TreeYield, ...]] = field(default_factory=dict)
    """By draft and what a GPU computes of it, which leaves its threads little to do."""
    lookups: tuple[TreeYield, ...] = ()
    """Of guesses from the text alone."""
    gain: float = 1.0
    """Of a draft's guesses that stand, what real rounds bring to what the replay of full trees
    does: guesses without a model add some, trees that end early lose some."""
    unhidden: float = 1.0
    """Of drafting, the share that is not done beside a pass that waits."""
    reached: float = 1.0
    """Of the best round's tokens a second, what a real run had: rules that learn find that round
    late, try others, and two models on the same cores hold each other up."""

    def trees(self, choice: Choice) -> tuple[TreeYield, ...]:
        """What the guesses of a choice bring. Raises KeyError where they were not measured."""
        if choice.draft is None:
            return self.lookups if choice.guesses else ()
        if choice.offload is not None:
            return self.offloaded[choice.draft, choice.offload]
        return self.yields[choice.draft, choice.threads_draft or choice.threads]

    def with_faster(self, disk_factor: float, compute_factor: float) -> Speeds:
        """A disk so many times as fast, and computing of both models."""
        return replace(
            self,
            disk_bytes_per_s=disk_factor * self.disk_bytes_per_s,
            compute={
                threads: tuple((nodes, seconds / compute_factor) for nodes, seconds in places)
                for threads, places in self.compute.items()
            },
            yields={
                of: tuple(replace(tree, draft_s=tree.draft_s / compute_factor) for tree in trees)
                for of, trees in self.yields.items()
            },
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one choice under one plan."""

    tokens_per_s: float
    tokens_per_pass: float
    n_nodes: int
    """Guesses of the tree that brings the most tokens a second; 0 is to leave them out."""
    read_s: float
    compute_s: float
    draft_s: float

    @property
    def limit(self) -> str:
        """What takes most of the round."""
        named = {"storage": self.read_s, "computing": self.compute_s, "drafting": self.draft_s}
        return max(named, key=lambda name: named[name])


def predict(
    choice: Choice, plan: MemoryPlan, speeds: Speeds, more_tokens: float = 0.0
) -> Prediction:
    """The best round that the engine can find. `more_tokens` are added to what drafted passes
    yield. Raises KeyError where the threads or the draft were not measured."""
    compute = speeds.compute[choice.threads]
    n_nodes, tokens, draft_s = [0], [1.0], [0.0]
    if trees := speeds.trees(choice):
        planned = plan.max_nodes - 1
        most = min(choice.draft_max or planned, planned, trees[-1].drafted_nodes)
        tokens_at = ((0.0, 1.0), *((t.drafted_nodes, t.tokens_per_pass) for t in trees))
        draft_at = ((0.0, 0.0), *((t.drafted_nodes, t.draft_s) for t in trees))
        unhidden = speeds.unhidden if choice.overlap else 1.0
        gain = speeds.gain if choice.draft is not None else 1.0
        n_nodes += range(1, most + 1)
        for n in range(1, most + 1):
            stood = (theory.at(tokens_at, n) - 1) * gain
            tokens.append(1 + stood + more_tokens)
            draft_s.append(unhidden * theory.at(draft_at, n))
    reads = [plan.expected_bytes(1 + n) / speeds.disk_bytes_per_s for n in n_nodes]
    computes = [theory.at(compute, 1 + n) for n in n_nodes]
    ring_s = plan.ring_bytes / speeds.disk_bytes_per_s if plan.paged else 0.0
    seconds = [
        theory.round_seconds(drafting, computing, reading, ring_s)
        for drafting, computing, reading in zip(draft_s, computes, reads, strict=True)
    ]
    best = theory.best_round(np.array(tokens), np.array(seconds))
    return Prediction(
        tokens_per_s=speeds.reached * tokens[best] / max(seconds[best], 1e-9),
        tokens_per_pass=tokens[best],
        n_nodes=n_nodes[best],
        read_s=reads[best],
        compute_s=computes[best],
        draft_s=draft_s[best],
    )


def without_draft(settings: LoadSettings) -> dict[str, Any]:
    """What was set, but for what is about a draft."""
    dropped = {"draft", "threads_draft", *option_names("draft")}
    return {name: value for name, value in settings.as_given().items() if name not in dropped}


def draft_alone(settings: LoadSettings, draft: Path, threads: int) -> LoadSettings:
    """A draft as the model of its own: what was said of it becomes what is said of the target."""
    given, for_target = settings.as_given(), option_names("target")
    kept = {k: v for k, v in without_draft(settings).items() if k not in for_target}
    own = {
        name.removesuffix("_draft"): given[name]
        for name in option_names("draft")
        if name in given and name.removesuffix("_draft") in for_target
    }
    return LoadSettings.model_validate(kept | own | {"model": draft, "threads": threads})


def compute_places(passes: Sequence[PassTiming]) -> Places:
    """Seconds of computing at each number of nodes, the median of its passes."""
    sizes = sorted({timing.n_nodes for timing in passes})
    return tuple(
        (float(size), median(t.compute_s for t in passes if t.n_nodes == size)) for size in sizes
    )


def disk_rate(passes: Sequence[PassTiming], raw_bytes_per_s: float) -> float:
    """Bytes a second that passes reach which wait for storage; what plain reads reach where none
    waited."""
    waited = [
        timing.bytes_read / timing.wall_s
        for timing in passes
        if timing.bytes_read and timing.stall_s > STALLED_SHARE * timing.wall_s
    ]
    return median(waited) if waited else raw_bytes_per_s


def calibrated(choice: Choice, plan: MemoryPlan, speeds: Speeds, run: Written) -> Speeds:
    """Speeds that explain a real run of `choice`: how many guesses stood, how much drafting its
    passes hid, and how near it came to the best round."""
    fitted = _fitted_to_rounds(choice, replace(speeds, reached=1.0), run)
    best = predict(choice, plan, fitted).tokens_per_s
    if not run.rounds or not best:
        return fitted
    return replace(
        fitted, reached=min(max(run.tokens_per_s / best, LEAST_REACHED), 1 / LEAST_REACHED)
    )


def _fitted_to_rounds(choice: Choice, speeds: Speeds, run: Written) -> Speeds:
    rounds = [cost for cost in run.rounds if cost.verified]
    if choice.draft is None or not rounds:
        return speeds
    trees = speeds.yields.get((choice.draft, choice.threads_draft or choice.threads), ())
    n_nodes = sum(cost.verified for cost in rounds) / len(rounds)
    places = ((0.0, 1.0), *((tree.drafted_nodes, tree.tokens_per_pass) for tree in trees))
    drafting = ((0.0, 0.0), *((tree.drafted_nodes, tree.draft_s) for tree in trees))
    expected, drafted_s = theory.at(places, n_nodes) - 1, theory.at(drafting, n_nodes)
    stood = sum(cost.accepted for cost in rounds) / len(rounds)
    spent_s = median(cost.wall_s - cost.pass_s for cost in rounds)
    return replace(
        speeds,
        gain=min(max(stood / expected, 0.25), 4.0) if expected > 0 else 1.0,
        unhidden=min(max(spent_s / drafted_s, 0.0), 2.0) if drafted_s > 0 else 1.0,
    )
