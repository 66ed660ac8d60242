"""Opens a target and its draft under one memory budget: chooses their plan, and loads them.

Knows whether a draft is worth its memory, and the order of loading. `prepared_models` reads headers
and divides the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

from edgespec import registry
from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.worker import Worker
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, Cancelled, ModelError, UsageError
from edgespec.memory import heap, process
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import LanguageModel, Progress
from edgespec.session import pairing, strategy
from edgespec.session.given import checked
from edgespec.session.prepared_models import PreparedModels
from edgespec.session.strategy import USUAL_THREADS, Speed, Strategy, is_as_fast, texts_at_once
from edgespec.settings import arguments
from edgespec.settings.config import DEFAULT_CTX_SIZE, LoadFields, LoadSettings
from edgespec.settings.units import format_size
from edgespec.tracing.spans import OFF, Trace, Track

T = TypeVar("T")

FREE_SHARE = 0.5
"""Share of memory that a longer context leaves to other uses."""
CELL_STEP = 256
"""Tokens that a longer context is a multiple of."""

ONE_TEXT = (
    "one text at a time: beside others (`n_parallel`) a text may change, and its prompt may "
    "take twice as long"
)
"""Note where `auto` leaves it at one text."""


def plan(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    **fields: Unpack[LoadFields],
) -> MemoryPlan:
    """The memory plan, without reading weights. Raises BudgetError and ModelError.

    The arguments are those of `load`. The budget is that of the process: a model that it has loaded
    already counts.
    """
    with _Opening(*checked(settings, engine_settings, progress, fields)) as opening:
        return opening.plan()


def open_models(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    trace: Trace = OFF,
    **fields: Unpack[LoadFields],
) -> LoadedModels:
    """The models that `load` loads, without an engine, for programs with an engine of their own.

    `engine_settings` limit the nodes of a pass. Raises the errors of `load`.
    """
    with (
        arguments.instance("trace", trace, Trace).span(Track.ENGINE, "load"),
        _Opening(*checked(settings, engine_settings, progress, fields), trace) as opening,
    ):
        return opening.load()


@dataclass(frozen=True, slots=True)
class LoadedModels(Closeable):
    """A target and its draft, loaded under one plan; close them together."""

    target: LanguageModel
    draft: LanguageModel | None
    plan: MemoryPlan
    load_report: dict[str, float]
    """Seconds by phase of loading, and `total`."""
    settings: LoadSettings | None = None
    """The settings that they were loaded by, without a draft that was left out."""
    needs: ModelNeeds | None = None
    """Memory needs of the target, for other budgets."""

    def settled(self, settings: EngineSettings) -> EngineSettings:
        """The engine's settings, with guesses from the text where they are left open and planned
        for."""
        is_open = settings.lookup is None and not settings.draws_guesses
        return settings.but(lookup=True) if is_open and self.plan.looks_up else settings

    def close(self) -> None:
        """Free everything. Idempotent."""
        owned = (self.target, self.draft)
        close_all(*(part.close for part in owned if part is not None))


class _Opening(Closeable):
    """The steps of loading, in a worker thread so that Ctrl-C works while native code runs."""

    def __init__(
        self,
        settings: LoadSettings,
        engine_settings: EngineSettings,
        progress: Progress | None,
        trace: Trace = OFF,
        is_trial: bool = False,
    ) -> None:
        """A trial is planned with the least context, and not loaded."""
        self._is_trial = is_trial
        self._progress = None if progress is None else self._ending(progress)
        self._ended_by: BaseException | None = None
        """Exception of the progress callback, which ends loading."""
        self._trace = trace
        budget_bytes = process.resolve_budget(settings.memory_budget)
        self._models = PreparedModels(settings, engine_settings, budget_bytes, trace)
        self._report: dict[str, float] = {}
        self._began = time.perf_counter()
        self._cleanup = ExitStack()
        self._worker = self._cleanup.enter_context(Worker())
        self._cleanup.callback(self._models.close)

    @property
    def _settings(self) -> LoadSettings:
        """The settings, without a draft once that is left out."""
        return self._models.settings

    def close(self) -> None:
        self._cleanup.close()

    def plan(self) -> MemoryPlan:
        # who waits is told that the models are prepared, which takes seconds
        show = None if self._progress is None else partial(self._progress, "planning", 0.0)
        if self._settings.n_parallel == "auto":
            speed = Speed(n_threads=self._settings.threads or process.usable_cores())
            sparing = self._settings.keeps_one_text_fast
            chosen = texts_at_once(self._planned_for, sparing, speed)
            fixed = {"n_parallel": chosen.n_parallel if chosen else 1}
            self._models.settings = self._settings.model_copy(update=fixed)
            if chosen and chosen.texts_alter_prompts and chosen.text_bytes:
                self._models.own_notes = (ONE_TEXT,)
        planned = self._run("planning", self._plan, show)
        if not self._is_trial:
            planned = self._run("context", partial(self._with_more_cells, planned), show)
        return self._with_notes(planned, self._unused_rules(planned))

    def _with_more_cells(self, least: MemoryPlan) -> MemoryPlan:
        """The plan with as many tokens of context as texts may use and half of the free memory has
        room for, if short texts are about as fast as by the plan with the `least`.

        A budget that may move keeps all room to do so.
        """
        models, settings = self._models, self._settings
        info, cell_bytes = models.target.info, models.target.needs().cell_bytes
        if not cell_bytes or settings.pages_all:
            return least
        longest = info.n_ctx if settings.ctx_size else max(info.n_ctx, info.max_ctx)
        n_most = max(longest, info.n_slots * min(longest, DEFAULT_CTX_SIZE))
        needed_bytes = least.smallest_bytes if least.paged else least.planned_bytes
        spare = int(FREE_SHARE * (models.budget_bytes - needed_bytes))
        n_cells = min(n_most, info.n_cells + spare // cell_bytes) // CELL_STEP * CELL_STEP
        while n_cells > info.n_cells:
            with suppress(BudgetError):
                more = models.planned_with(n_cells)
                if is_as_fast(more, least):
                    return replace(more, smallest_bytes=least.smallest_bytes)
            n_cells = n_cells // 2 // CELL_STEP * CELL_STEP
        if models.target.info.n_cells > info.n_cells:
            models.planned_with(0)
        return least

    def _planned_for(self, n_texts: int) -> MemoryPlan | None:
        """The plan for `n_texts` at once; None if budget, draft or model stand in the way."""
        fixed = {"n_parallel": n_texts, "memory_budget": self._models.budget_bytes}
        settings, rules = self._settings.model_copy(update=fixed), self._models.engine_settings
        if settings.draft is None and not rules.lookup:
            rules = rules.but(lookup=False)
        try:
            with _Opening(settings, rules, self._progress, is_trial=True) as trial:
                planned = trial.plan()
        except BudgetError:
            return None
        finally:
            heap.trim_heap()
        # with the margin, because this process will have grown before the final plan
        is_possible = planned.smallest_bytes <= self._models.budget_bytes
        return planned if planned.n_parallel == n_texts and is_possible else None

    def load(self) -> LoadedModels:
        memory_plan = self.plan()
        if too_large := process.note_on_plan(memory_plan.planned_bytes):
            # the kernel would end the process, in a control group without a word
            raise BudgetError(too_large)
        with ExitStack() as on_failure:
            draft, settings, prepared = None, self._settings, self._models.prepared
            if settings.draft is not None:
                second = prepared[1]
                draft = self._run("draft", lambda: second.load(memory_plan, self._progress))
                on_failure.callback(draft.close)
                heap.trim_heap()  # memory of loading, before the target needs its own
            first = self._models.target
            target = self._run("target", lambda: first.load(memory_plan, self._progress))
            on_failure.callback(target.close)
            if draft is not None:
                draft.borrow_from(target)
            for owner, model in zip(("target", "draft"), prepared, strict=False):
                for phase, seconds in model.seconds.items():
                    self._report[f"{owner}: {phase}"] = seconds
            self._report["total"] = time.perf_counter() - self._began
            # runtimes may add notes while loading
            memory_plan = self._with_notes(memory_plan, self._models.notes(memory_plan))
            needs = first.needs()
            on_failure.pop_all()
        return LoadedModels(target, draft, memory_plan, self._report, settings, needs)

    def _run(self, phase: str, call: Callable[[], T], check: Callable[[], None] | None = None) -> T:
        """Result of `call` in the worker; `check` is polled meanwhile."""
        began = time.perf_counter()
        try:
            with self._trace.span(Track.ENGINE, phase):
                return self._worker.run(call, self._models.cancel, check)
        except Cancelled:
            if self._ended_by is not None:
                raise self._ended_by from None
            raise
        finally:
            self._report[phase] = time.perf_counter() - began

    def _ending(self, progress: Progress) -> Progress:
        """A callback that ends loading with what `progress` raises; native code would lose it."""

        def report(doing: str, share: float) -> None:
            try:
                progress(doing, share)
            except BaseException as error:  # noqa: BLE001 - raised by `_run`
                self._ended_by = self._ended_by or error
                self._models.cancel()

        return report

    def _plan(self) -> MemoryPlan:
        """The plan; without a draft that nobody asked for, if it cannot be used or does not pay."""
        settings = self._settings
        if settings.draft is None:
            return self._models.planned()
        try:
            paired = self._models.planned()
        except (BudgetError, ModelError, UsageError) as error:
            is_own = settings.draft == settings.model and registry.guesses_itself(settings.model)
            if not is_own and not settings.optional_draft:
                raise
            whom = "itself" if is_own else settings.model.name
            why = str(error)
            if isinstance(error, BudgetError) and error.smallest_bytes:
                why = f"both need a `memory_budget` of {format_size(error.smallest_bytes)}"
            self._leave_draft_out(f"{self._draft_name} does not guess for {whom}: {why}")
            return self._models.planned()
        return self._weighed(paired) if paired.paged else paired

    def _weighed(self, paired: MemoryPlan) -> MemoryPlan:
        """`paired`, or the plan without the draft if texts are expected to be faster without it.

        A draft that was asked for is used, with a note.
        """
        settings, models, disk = self._settings, self._models, self._models.disk_bytes_per_s
        if not disk:  # a small model, or a folder of files
            return paired
        target, draft = models.target, models.prepared[1].info
        alone = models.divided([target.needs()])  # with buffers for guesses
        speed = Speed(disk, target.info.n_threads or USUAL_THREADS)
        nbytes, looks_up = target.info.size_bytes, models.engine_settings.lookup is None
        with_draft = Strategy(paired, nbytes, strategy.USUAL, file_bytes=draft.size_bytes)
        gain = strategy.alone(alone, nbytes, looks_up).speedup(with_draft, speed)[0]
        if gain <= 1 or (gain < pairing.MIN_GAIN and not settings.optional_draft):
            return paired
        note = pairing.note_on_worth(self._draft_name, paired, alone, gain)
        if settings.optional_draft:
            self._leave_draft_out(f"{note}, so that it is left out (`draft` asks for it)")
            return models.planned()
        models.own_notes = (*models.own_notes, f"{note} (`draft=None`)")
        return self._with_notes(paired, models.own_notes)

    @property
    def _draft_name(self) -> str:
        draft = self._settings.draft
        assert draft is not None
        return draft.name if draft == self._settings.model else draft.stem

    def _leave_draft_out(self, note: str) -> None:
        """Go on without the draft, with a note about the reason."""
        self._models.settings = self._settings.without_draft()
        self._models.close()
        self._models.own_notes = (*self._models.own_notes, note)

    def _with_notes(self, plan: MemoryPlan, notes: Iterable[str]) -> MemoryPlan:
        """The plan with these notes after its own, each once."""
        return replace(plan, notes=tuple(dict.fromkeys((*plan.notes, *notes))))

    def _unused_rules(self, plan: MemoryPlan) -> Sequence[str]:
        """A note about rules of guessing that were given although nothing guesses."""
        rules = self._models.engine_settings
        may_guess = self._settings.draft is not None or rules.lookup is not None
        if may_guess or plan.looks_up or not rules.of_guesses:
            return ()
        given = " and ".join(f"`{name}`" for name in rules.of_guesses)
        return (
            f"without a draft nothing guesses here: for {given} to have an effect, name a draft "
            "with `draft`, or give `lookup=True`",
        )
