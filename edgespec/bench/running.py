"""Runs a bench: what each process is asked, in which order, and what becomes of its answer.

It knows jobs and rows; how figures are made of them, and how they are shown, is elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from edgespec.bench import table
from edgespec.bench.modes import Mode
from edgespec.bench.report import LeftOut
from edgespec.bench.runs import (
    CHILD,
    Decode,
    Decoded,
    RawRead,
    ReadRaw,
    Survey,
    Surveyed,
)
from edgespec.bench.settings import BenchSettings
from edgespec.bench.summary import Row
from edgespec.jobs.launching import Launched, launch
from edgespec.jobs.limits import Limiter
from edgespec.jobs.messages import Failed
from edgespec.models.model_files import copies, files_of, largest_of

RAW = "raw"
"""Name of the read loop among the modes."""
RAW_BYTES = 1 << 30
"""Most that a read loop reads."""


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings and models that all runs share."""

    settings: BenchSettings
    target: Path
    modes: Sequence[Mode]
    prompts: Sequence[Prompt]
    """Those of single texts first; further ones are decoded beside them."""
    limiter: Limiter
    budget_bytes: int | None
    """edgespec's own; None is what is free."""
    n_threads: int
    fits: bool = False
    """The whole target stays in memory: no mode is slow."""

    @property
    def drafts(self) -> list[Path]:
        """Those of its modes, each once."""
        return list(dict.fromkeys(mode.draft.path for mode in self.modes if mode.draft))

    def tokens_of(self, mode: Mode) -> int:
        """Most tokens of a run."""
        return self.settings.tokens_of(mode.is_slow and not self.fits)


@dataclass(slots=True)
class Results:
    """Outcomes of all runs."""

    rows: list[Row] = field(default_factory=list)
    raw: list[RawRead] = field(default_factory=list)
    failures: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelSurvey:
    """Plans of the target with each draft."""

    resident_bytes: int
    """The whole process with the target alone, all its weights in memory."""
    obstacles: Mapping[Path, str]
    """Reasons for which drafts cannot guess here."""


def survey(bench: Bench) -> ModelSurvey:
    """Sizes of the models in memory. It is an error where the target fits no budget of edgespec's,
    and where no draft fits the target."""
    engines = replace(bench, modes=[mode for mode in bench.modes if mode.engine is not None])
    drafts: Sequence[Path | None] = engines.drafts or [None]
    answers = {draft: _survey(bench, draft) for draft in drafts}
    obstacles: dict[Path, str] = {}
    found: list[Surveyed] = []
    for draft, answer in answers.items():
        if isinstance(answer, Surveyed):
            found.append(answer)
        if draft and (
            reason := answer.obstacle if isinstance(answer, Surveyed) else answer.message
        ):
            obstacles[draft] = reason
    if not found:
        raise next(answer.error for answer in answers.values() if isinstance(answer, Failed))
    return ModelSurvey(found[0].resident_bytes, obstacles)


def _survey(bench: Bench, draft: Path | None) -> Surveyed | Failed:
    engines = [mode for mode in bench.modes if mode.engine is not None]
    is_own = any(mode.draft and mode.draft.is_own for mode in engines if draft == bench.target)
    n_texts = [1] if is_own else [mode.n_texts or 1 for mode in engines]
    job = Survey(
        bench.target,
        draft,
        bench.settings.ctx_size,
        bench.n_threads,
        bench.budget_bytes if engines else None,
        max(n_texts, default=1),
    )
    # not bound: a limit that is too small would kill it before it can say so
    answer = launch(job, CHILD).answer
    if isinstance(answer, Surveyed):
        return answer
    assert isinstance(answer, Failed)
    # a budget error names the flag of `generate`
    return replace(answer, message=answer.message.replace("--memory-budget", "--memory"))


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run to come. `mode` is a mode's name, or RAW."""

    mode: str
    prompt: int
    repetition: int


def scheduled_runs(
    modes: Sequence[str], n_prompts: int, n_repetitions: int
) -> Iterator[ScheduledRun]:
    """Every mode once per repetition and prompt, each time in another order.

    What drifts - a disk's temperature, a neighbour's load - hits all modes alike.
    """
    names = [RAW, *modes]
    for repetition in range(n_repetitions):
        for prompt in range(n_prompts):
            shift = (repetition * n_prompts + prompt) % len(names)
            for name in (*names[shift:], *names[:shift]):
                yield ScheduledRun(name, prompt, repetition)


class Display(Protocol):
    """Receives notes and progress of a bench."""

    def note(self, text: str) -> None: ...

    def progress(self, what: str, share: float) -> None: ...

    def end_of_progress(self) -> None: ...


def run_all(bench: Bench, display: Display) -> Results:
    """Every turn in a process of its own; a run that fails does not end the bench."""
    results = Results()
    settings = bench.settings
    due = list(
        scheduled_runs(
            [mode.name for mode in bench.modes], settings.n_prompts, settings.repetitions
        )
    )
    _announce(bench, len(due), display)
    began = time.monotonic()
    for number, turn in enumerate(due, 1):
        prompt = bench.prompts[turn.prompt]
        what = f"{table.counter(number, len(due))} {turn.mode} on {prompt.name}; the whole bench"
        share = (number - 1) / len(due)
        # in a log, the lines of finished runs are progress enough
        tick = partial(display.progress, what, share) if sys.stderr.isatty() else lambda: None
        launched = _launch(bench, turn, tick)
        left_s = (time.monotonic() - began) / number * (len(due) - number)
        match launched.answer:
            case Decoded() as decoded:
                row = _row(bench, turn, decoded)
                results.rows.append(row)
                display.note(table.run_line(row, number, len(due), left_s))
            case RawRead() as read:
                results.raw.append(read)
                display.note(table.raw_line(read.bytes_per_s, number, len(due), left_s))
            case Failed(message):
                results.failures.append(LeftOut(turn.mode, message))
                display.note(f"{table.counter(number, len(due))} {turn.mode} failed: {message}")
    display.end_of_progress()
    return results


def _launch(bench: Bench, turn: ScheduledRun, tick: Callable[[], None]) -> Launched:
    models = (bench.target, *bench.drafts)
    cold = [*(file for model in models for file in files_of(model)), *copies()]
    if turn.mode == RAW:
        return launch(
            ReadRaw(largest_of(bench.target), RAW_BYTES), CHILD, bench.limiter, cold, tick
        )
    return launch(_job(bench, _mode(bench, turn), turn.prompt), CHILD, bench.limiter, cold, tick)


def _job(bench: Bench, mode: Mode, first: int) -> Decode:
    """The job of a run that begins with the prompt `first`; further texts take those after it."""
    texts = [prompt.text for prompt in bench.prompts[first : first + (mode.n_texts or 1)]]
    return Decode(
        mode.strategy,
        bench.target,
        mode.draft.path if mode.draft else None,
        tuple(texts),
        bench.tokens_of(mode),
        bench.settings.ctx_size,
        bench.n_threads,
        bench.budget_bytes,
        together=mode.n_texts is not None,
    )


def _mode(bench: Bench, turn: ScheduledRun) -> Mode:
    return next(mode for mode in bench.modes if mode.name == turn.mode)


def _row(bench: Bench, turn: ScheduledRun, decoded: Decoded) -> Row:
    draft = _mode(bench, turn).draft
    return Row(
        mode=turn.mode,
        prompt=bench.prompts[turn.prompt].name,
        repetition=turn.repetition,
        decoded=decoded,
        draft=draft.name if draft else None,
    )


def _announce(bench: Bench, n_runs: int, display: Display) -> None:
    settings = bench.settings
    display.note(
        f"{n_runs} runs: {table.counted(len(bench.modes), 'mode')} and raw reads on "
        f"{table.counted(settings.n_prompts, 'prompt')}, "
        f"{table.counted(settings.repetitions, 'time')}; "
        f"{table.token_counts(settings.max_tokens, settings.tokens_of(not bench.fits))}"
    )
    display.note(
        "the first run tells how long they take; --quick, --modes, -n, --n-prompts and "
        "--repetitions make them fewer or shorter"
    )
