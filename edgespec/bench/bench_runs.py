"""Runs a bench: says which modes can run, starts a process for each run, and collects the results.

Summaries and their presentation are elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgespec import registry
from edgespec.bench import child, table
from edgespec.bench.bench_report import SkippedMode
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import BenchDraft, Mode
from edgespec.bench.runs import Decoded
from edgespec.bench.summary import FinishedRun
from edgespec.errors import EdgespecError, Sentence, marked
from edgespec.jobs.launching import launch
from edgespec.jobs.limits import UNLIMITED, Limiter
from edgespec.memory import process
from edgespec.models.model_files import copies, distinct_names, files_of, largest_of
from edgespec.ports import Progress
from edgespec.ports.baselines import BaselineRequest, pick_best
from edgespec.settings.config import LoadSettings, SamplingParams
from edgespec.settings.units import format_size

RAW = "raw"
"""Name of the read loop in the list of modes."""


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings and models common to all runs."""

    settings: BenchSettings
    load: LoadSettings
    """Settings for loading the target, with the budget and the context of each run."""
    modes: Sequence[Mode]
    """The first is the one that others are compared with."""
    prompts: Sequence[Prompt]
    limiter: Limiter = UNLIMITED
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Sampling of modes with a temperature."""
    fits: bool = False
    """True if the whole target fits into memory, so that no mode is slow."""

    @property
    def drafts(self) -> list[Path]:
        """Draft models of the modes, each once."""
        return list(dict.fromkeys(mode.draft.path for mode in self.modes if mode.draft))

    def loading(self, draft: Path | None, **changed: Any) -> LoadSettings:
        """Settings for loading the target with `draft`."""
        load = self.load.without_draft() if draft is None else self.load
        return load.but({"draft": draft, "n_parallel": 1, "optional_draft": False} | changed)


@dataclass(slots=True)
class Results:
    """Outcomes of all runs."""

    rows: list[FinishedRun] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    """Bytes per second of plain reads."""
    failures: list[SkippedMode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelSurvey:
    """Findings from planning the target with each draft."""

    resident_bytes: int
    """Memory of the process with only the target, all its weights resident."""
    obstacles: Mapping[Path, str]
    """Reasons why drafts cannot be used here."""


def survey(bench: Bench, show: Progress) -> ModelSurvey:
    """Plan the target with each draft; `show` is polled. Raises EdgespecError if no plan works."""
    tick = partial(show, "planning", 0.0)
    drafts = dict.fromkeys(mode.draft for mode in bench.modes if mode.engine is not None)
    if len(drafts) > 1:
        drafts.pop(None, None)  # planned with each draft
    obstacles: dict[Path, str] = {}
    errors: list[EdgespecError] = []
    for draft in drafts:
        path = draft.path if draft else None
        try:
            # without limits: one that is too small would kill the process before it can report it
            reason = launch(partial(child.reason_without_draft, bench.loading(path)), tick=tick)
        except EdgespecError as error:
            reason = marked(error)
            errors.append(error)
        if path and reason:
            obstacles[path] = Sentence(reason)
    if errors and len(errors) == len(drafts):
        raise errors[0]
    resident = partial(child.resident_bytes, bench.loading(None))
    return ModelSurvey(launch(resident, tick=tick), obstacles)


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One scheduled run. `mode` is the name of a mode, or RAW."""

    mode: str
    prompt: int
    repetition: int


def scheduled_runs(
    names: Sequence[str], n_prompts: int, n_repetitions: int
) -> Iterator[ScheduledRun]:
    """Every mode once per repetition and prompt, in rotating order.

    Drift, such as of a disk's temperature or other load, then affects all modes equally.
    """
    for repetition in range(n_repetitions):
        for prompt in range(n_prompts):
            shift = (repetition * n_prompts + prompt) % len(names)
            for name in (*names[shift:], *names[:shift]):
                yield ScheduledRun(name, prompt, repetition)


def run_all(
    bench: Bench,
    note: Callable[[str], None],
    progress: Progress,
    also: Sequence[str] = (RAW,),
    leaving: Callable[[Results], Collection[str]] = lambda _: (),
) -> Results:
    """Run everything, each run in a process of its own; a failed run does not end the bench.

    `also` is run besides the modes, and `leaving` names modes that have no further turn after one
    in which all had theirs.
    """
    results = Results()
    names = [*also, *(mode.name for mode in bench.modes)]
    due = deque(scheduled_runs(names, len(bench.prompts), bench.settings.repetitions))
    _announce(bench, len(due), note)
    began, left_s, n_done = time.monotonic(), 0.0, 0
    # in a log file, the lines of finished runs are enough
    show: Progress = progress if sys.stderr.isatty() else lambda what, share: None
    while due:
        turn = due.popleft()
        n_done, n_runs = n_done + 1, n_done + 1 + len(due)
        counter = table.counter(n_done, n_runs)
        rest = ", ".join(filter(None, ("the whole bench", table.left(left_s))))
        what = f"{counter} {turn.mode} on {bench.prompts[turn.prompt].name}; {rest}"
        try:
            measured = _measure(bench, turn, partial(show, what, (n_done - 1) / n_runs))
        except EdgespecError as error:
            results.failures.append(SkippedMode(turn.mode, error.message))
            note(f"{counter} {turn.mode} failed: {marked(error)}")
        else:
            left_s = (time.monotonic() - began) / n_done * len(due)
            if isinstance(measured, float):
                results.raw.append(measured)
                note(table.raw_line(measured, n_done, n_runs, left_s))
            else:
                results.rows.append(_row(bench, turn, measured))
                note(table.run_line(results.rows[-1], n_done, n_runs))
        if due and (due[0].prompt, due[0].repetition) != (turn.prompt, turn.repetition):
            gone = leaving(results)
            due = deque(run for run in due if run.mode not in gone)
    return results


def _measure(bench: Bench, turn: ScheduledRun, tick: Callable[[], None]) -> Decoded | float:
    target = bench.load.model
    cold = [*(file for model in (target, *bench.drafts) for file in files_of(model)), *copies()]
    if turn.mode == RAW:
        return launch(partial(child.raw_bytes_per_s, largest_of(target)), bench.limiter, cold, tick)
    job = _job(bench, _mode(bench, turn), bench.prompts[turn.prompt].text)
    return launch(job, bench.limiter, cold, tick)


def _job(bench: Bench, mode: Mode, prompt: str) -> Callable[[], Decoded]:
    """The job of a run with a prompt."""
    draft = mode.draft.path if mode.draft else None
    n_tokens = bench.settings.tokens_of(mode.is_slow and not bench.fits)
    sampling = bench.sampling if mode.temperature else SamplingParams()
    load = bench.loading(draft, **mode.changed)
    if mode.engine is not None:
        return partial(child.decode, load, mode.engine, prompt, n_tokens, sampling)
    request = BaselineRequest(
        model=load.model,
        draft=draft,
        prompt=prompt,
        n_tokens=n_tokens,
        ctx_size=load.ctx_size,
        n_threads=load.threads or process.usable_cores(),
        bytes_read=child.storage_reads,
        pick=child.RandomPick(sampling) if mode.temperature else pick_best,
    )
    return partial(child.decode_by_library, mode.strategy, request)


def _mode(bench: Bench, turn: ScheduledRun) -> Mode:
    return next(mode for mode in bench.modes if mode.name == turn.mode)


def _row(bench: Bench, turn: ScheduledRun, decoded: Decoded) -> FinishedRun:
    draft = _mode(bench, turn).draft
    return FinishedRun(
        mode=turn.mode,
        prompt=bench.prompts[turn.prompt].name,
        repetition=turn.repetition,
        decoded=decoded,
        draft=draft.name if draft else None,
    )


def _announce(bench: Bench, n_runs: int, note: Callable[[str], None]) -> None:
    settings = bench.settings
    note(
        f"{n_runs} runs: {table.counted(len(bench.modes), 'mode')} on "
        f"{table.counted(len(bench.prompts), 'prompt')}, "
        f"{table.counted(settings.repetitions, 'time')}; "
        f"{table.token_counts(settings.max_tokens, settings.tokens_of(not bench.fits))}"
    )
    note("the first run tells how long they take; --quick and -n make them fewer or shorter")


def named_drafts(paths: Sequence[Path], target: Path) -> list[BenchDraft]:
    """Drafts with unique names for a target."""
    runtime, drafts = registry.find(target), []
    for path, name in zip(paths, distinct_names(paths), strict=True):
        is_own = path == target and runtime.guesses_itself(target)
        is_whole = not is_own and registry.describe(path).head is None
        in_library = is_whole and registry.find(path).name == runtime.name
        drafts.append(BenchDraft(path, name, in_library))
    return drafts


def applicable(
    modes: Sequence[Mode], surveyed: ModelSurvey, room_bytes: int
) -> tuple[list[Mode], list[SkippedMode]]:
    """The modes that can run, and the others with reasons."""
    fitting, left_out = [], []
    for mode in modes:
        if mode.drafts and mode.draft is None:
            reason = "there is no draft: -md names one; mode lookup guesses without"
            left_out.append(SkippedMode(mode.name, reason))
        elif mode.draft and mode.engine is None and not mode.draft.in_library:
            left_out.append(SkippedMode(mode.name, "its library cannot run this draft"))
        elif mode.draft and (obstacle := surveyed.obstacles.get(mode.draft.path)):
            left_out.append(SkippedMode(mode.name, obstacle))
        elif mode.resident and surveyed.resident_bytes > room_bytes:
            reason = f"it needs {format_size(surveyed.resident_bytes)} of memory and there are "
            left_out.append(SkippedMode(mode.name, reason + format_size(room_bytes)))
        else:
            fitting.append(mode)
    return fitting, left_out
