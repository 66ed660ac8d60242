"""What is known of a device and a pair before anything is chosen: plans, runs, replays, speeds.

It decides what is measured and in which order. Who measures is behind the `Lab`, so that tests
bring a device that computes by formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Protocol

from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, EdgespecError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning.cost_model import (
    Choice,
    Prediction,
    Speeds,
    calibrated,
    compute_places,
    disk_rate,
    draft_alone,
    predict,
)
from edgespec.tuning.measurements import ModelGpu, ReadSpeed, Refused, Replayed, Text, Written
from edgespec.tuning.offloads import Offload, offloads

PASS_SIZES = (1, 4, 16, 97)
"""Nodes of timed passes, the root counted."""
TREE_SIZES = (1, 4, 8, 16, 32, 64, 96)
WRITTEN_TOKENS = 40
"""Of each text of the first run."""
STARTING_S = 1.0
"""Of a process, until it loads a model."""
READ_BOUND = 0.8
"""Where computing takes less than this share of reading, its threads do not matter."""

Say = Callable[[str], None]


class Lab(Protocol):
    """Who measures. Each call that loads models keeps their budget."""

    def plans(
        self,
        asked: Sequence[tuple[LoadSettings, EngineSettings]],
        most_s: float | None = None,
    ) -> Sequence[MemoryPlan | Refused]:
        """Who would get which bytes with each of these, in processes like those that measure. After
        `most_s` no other is planned: it is refused."""

    def read_speeds(self) -> Sequence[ReadSpeed]:
        """Of the disk with the target: the engine's own kind of reads first."""

    def gpus(self, models: Sequence[Path]) -> Sequence[ModelGpu]:
        """That could compute these models; often none."""

    def write(
        self,
        load: LoadSettings,
        engine: EngineSettings,
        n_tokens: int,
        pass_sizes: tuple[int, ...] = (),
        most_s: float | None = None,
        n_texts: int | None = None,
    ) -> Written:
        """Texts of up to `n_tokens`, cut short after `most_s`; None is as long as it may take, and
        all texts."""

    def replay(self, load: LoadSettings, texts: tuple[Text, ...]) -> Replayed:
        """Of the model of `load`, a draft."""

    @property
    def left_s(self) -> float:
        """Of the time that tuning may take."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is tuned, and what the user has settled already."""

    load: LoadSettings
    """With the first of the drafts."""
    engine: EngineSettings
    drafts: tuple[Path, ...]
    usual_threads: int
    settled: frozenset[str] = frozenset()
    """Names of settings that are not to be changed."""

    @property
    def usual(self) -> Choice:
        """What runs without tuning."""
        return Choice(
            draft=self.load.draft,
            threads=self.load.threads or self.usual_threads,
            threads_draft=self.load.threads_draft,
            draft_max=self.engine.draft_max if self.engine.pins_draft_max else None,
            overlap=self.engine.overlap,
            lookup=self.engine.lookup,
            rules=self.engine,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair with the settings that run without tuning."""

    wanted: Wanted
    plan: MemoryPlan
    reads: tuple[ReadSpeed, ...]
    """None where nothing is paged."""
    first: Written
    replays: tuple[tuple[Path, int, Replayed], ...]
    """By draft and its threads."""
    speeds: Speeds
    gpus: tuple[ModelGpu, ...] = ()
    offloaded: tuple[tuple[Path, Offload, Replayed], ...] = ()
    """By draft and what a GPU computed of it."""

    @property
    def expected(self) -> Prediction:
        return predict(self.wanted.usual, self.plan, self.speeds)

    @property
    def n_texts(self) -> int:
        """That there was time to write."""
        return max(1, len(self.first.texts))

    def run_s(self, n_texts: int, n_tokens: int) -> float:
        """Of a run with the defaults: a process starts and loads, and reads the prompt of each text
        before it goes on with it."""
        expected = self.expected
        prompt_s = max(expected.read_s, expected.compute_s)
        token_s = 1 / max(self.first.tokens_per_s, 1e-3)
        return STARTING_S + self.first.load_s + n_texts * (prompt_s + n_tokens * token_s)

    @property
    def shortest_run_s(self) -> float:
        """Of a run that says anything: it loads, reads a prompt and makes a round."""
        return shortest_run_s(self.first, self.expected)

    def rate(
        self,
        plan: MemoryPlan,
        disk_factor: float = 1.0,
        more_tokens: float = 0.0,
        compute_factor: float = 1.0,
    ) -> float | None:
        """Tokens a second under another plan, on a faster disk, with a better draft or with faster
        computing. None where everything fits that did not: what is resident computes with other
        kernels."""
        if plan.paged != self.plan.paged:
            return None
        speeds = self.speeds.with_faster(disk_factor, compute_factor)
        return predict(self.wanted.usual, plan, speeds, more_tokens).tokens_per_s


def measure(
    lab: Lab, wanted: Wanted, say: Say = lambda _: None, other_settings: bool = True
) -> Measured:
    """Run the usual settings once, replay what the drafts would have guessed, and fit the model to
    it. Raises what planning and loading raise."""
    usual = wanted.usual
    plan = _plan_of_each_draft(lab, wanted)
    reads = tuple(lab.read_speeds()) if plan.paged else ()
    gpus = _gpus(lab, wanted, say)
    say("a run with the defaults")
    first = lab.write(usual.load(wanted.load), usual.engine, WRITTEN_TOKENS, PASS_SIZES)
    raw_bytes_per_s = reads[0].bytes_per_s if reads else inf
    speeds = Speeds(
        disk_bytes_per_s=disk_rate(first.passes, raw_bytes_per_s),
        compute={usual.threads: compute_places(first.passes)},
        lookups=first.lookups,
    )
    replays = tuple(_replays(lab, wanted, first.texts, say, other_settings))
    yields = {(draft, threads): done.trees for draft, threads, done in replays}
    speeds = calibrated(usual, plan, replace(speeds, yields=yields), first)
    offloaded: tuple[tuple[Path, Offload, Replayed], ...] = ()
    if other_settings:
        speeds = _with_other_threads(lab, wanted, plan, speeds, first, say)
        offloaded = tuple(_offloaded(lab, wanted, gpus, first.texts, say))
        on_gpu = {(draft, offload): done.trees for draft, offload, done in offloaded}
        speeds = replace(speeds, offloaded=on_gpu)
    return Measured(wanted, plan, reads, first, replays, speeds, gpus, offloaded)


def shortest_run_s(first: Written, expected: Prediction) -> float:
    """As long as loading took in the first run, and two passes."""
    return first.load_s + 2 * max(expected.read_s, expected.compute_s)


def _plan_of_each_draft(lab: Lab, wanted: Wanted) -> MemoryPlan:
    """The usual plan. Drafts of another vocabulary are refused here, before minutes are spent;
    one that does not fit beside the target is left out later."""
    usual = wanted.usual
    others = [replace(usual, draft=draft) for draft in wanted.drafts if draft != usual.draft]
    asked = [(choice.load(wanted.load), choice.engine) for choice in (usual, *others)]
    found, *_ = lab.plans(asked)
    return _accepted(found)


def the_plan(lab: Lab, load: LoadSettings, engine: EngineSettings) -> MemoryPlan:
    """Raises BudgetError."""
    (found,) = lab.plans([(load, engine)])
    return _accepted(found)


def _accepted(found: MemoryPlan | Refused) -> MemoryPlan:
    if isinstance(found, Refused):
        raise BudgetError(found.message, found.smallest_bytes)
    return found


def _replays(
    lab: Lab, wanted: Wanted, texts: tuple[Text, ...], say: Say, other_settings: bool
) -> Iterable[tuple[Path, int, Replayed]]:
    """Each draft with the default's threads, the first one with others too."""
    usual = wanted.usual
    threads = usual.threads_draft or usual.threads
    for draft in wanted.drafts:
        say(f"what {draft.name} guesses")
        yield draft, threads, lab.replay(draft_alone(wanted.load, draft, threads), texts)
        is_settled = {"threads", "threads_draft"} & wanted.settled
        if is_settled or not other_settings or draft != usual.draft:
            continue
        for fewer in _fewer(threads):
            if lab.left_s > 0:
                yield draft, fewer, lab.replay(draft_alone(wanted.load, draft, fewer), texts)


def _gpus(lab: Lab, wanted: Wanted, say: Say) -> tuple[ModelGpu, ...]:
    """What asking fails with is said, and no GPU considered."""
    try:
        return tuple(lab.gpus(tuple(dict.fromkeys([wanted.load.model, *wanted.drafts]))))
    except EdgespecError as error:
        say(f"no GPU is considered: {error}")
        return ()


def _offloaded(
    lab: Lab, wanted: Wanted, gpus: Sequence[ModelGpu], texts: tuple[Text, ...], say: Say
) -> Iterable[tuple[Path, Offload, Replayed]]:
    """Each draft on a GPU. One that it does not take is left out."""
    usual = wanted.usual
    threads = usual.threads_draft or usual.threads
    for draft in wanted.drafts:
        for offload in offloads(wanted.load, gpus, draft, "draft"):
            say(f"what {draft.name} guesses with {offload.says}")
            load = replace(usual, draft=draft, offload=offload).load(wanted.load)
            try:
                replayed = lab.replay(draft_alone(load, draft, threads), texts)
            except EdgespecError as error:
                say(f"left out: {offload.says} ({error})")
                continue
            yield draft, offload, replayed


def _fewer(threads: int) -> list[int]:
    return sorted({n for n in (threads // 2, 1) if 1 <= n < threads}, reverse=True)


def _with_other_threads(
    lab: Lab, wanted: Wanted, plan: MemoryPlan, speeds: Speeds, first: Written, say: Say
) -> Speeds:
    """Computing with fewer threads, where reads do not hide it anyway."""
    usual = wanted.usual
    expected = predict(usual, plan, speeds)
    if "threads" in wanted.settled or expected.compute_s < READ_BOUND * expected.read_s:
        return speeds
    compute = dict(speeds.compute)
    alone = replace(usual, draft=None, threads_draft=None)
    for threads in _fewer(usual.threads)[:1]:
        if lab.left_s <= shortest_run_s(first, expected):
            break
        say(f"passes with {threads} threads")
        load = replace(alone, threads=threads).load(wanted.load)
        engine = replace(alone.engine, lookup=True)
        timed = lab.write(load, engine, 1, PASS_SIZES, n_texts=1)
        compute[threads] = compute_places(timed.passes)
    return replace(speeds, compute=compute)
