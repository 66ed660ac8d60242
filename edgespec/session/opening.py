"""Opens a target and its draft under one memory budget: finds them, chooses their plan, and loads
them.

Knows whether a draft is worth its memory, and the order of loading. `prepared_models` reads headers
and divides the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

from edgespec import extras
from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.worker import Worker
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError, UsageError, marked, setting
from edgespec.memory import heap, process
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.division import Cuts
from edgespec.ports import LanguageModel, Progress
from edgespec.session.prepared_models import PreparedModels
from edgespec.session.strategy import is_as_fast, texts_at_once
from edgespec.settings import arguments, hub_reference
from edgespec.settings.config import DEFAULT_CTX_SIZE, LoadFields, LoadSettings
from edgespec.settings.parsing import OWN_DRAFT
from edgespec.settings.units import format_size
from edgespec.tracing.spans import OFF, Trace, Track

T = TypeVar("T")

FREE_SHARE = 0.5
"""Share of memory that a longer context leaves to other uses."""
SHORT_CTX_SIZES = (2048, 1024)
"""Contexts that are tried one after the other where the default one does not fit."""
CELL_STEP = 256
"""Tokens that a longer context is a multiple of."""
GROWTH_BYTES = 8 << 20
"""Growth of a process that prepares models for several numbers of texts: 6 MiB were measured."""

DRAFTED_TOKENS = 2.4
"""Tokens of a pass with a draft that has not run yet, to those with guesses from the text: the head
of smollm2 in conversation (decision 0084), and the embedded pair."""


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
    with _Opening(*checked(settings, engine_settings, progress, fields), progress) as opening:
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
        _Opening(*checked(settings, engine_settings, progress, fields), progress, trace) as opening,
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
    cuts: Cuts = ()
    """Possible segmentations of the target's weights, for other budgets."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        owned = (self.target, self.draft)
        close_all(*(part.close for part in owned if part is not None))


class _Opening(ExitStack):
    """The steps of loading, in a worker thread so that Ctrl-C works while native code runs."""

    def __init__(
        self,
        settings: LoadSettings,
        rules: EngineSettings,
        notes: tuple[str, ...],
        progress: Progress | None,
        trace: Trace = OFF,
    ) -> None:
        super().__init__()
        self._progress = progress
        self._doing = "planning", 0.0
        """Work of the worker's thread, and its share; the callback is told in the caller's."""
        self._trace = trace
        budget_bytes = process.resolve_budget(settings.memory_budget)
        self._models = PreparedModels(settings, rules, budget_bytes, trace)
        self._given_notes = notes
        self._report: dict[str, float] = {}
        self._began = time.perf_counter()
        self._worker = self.enter_context(Worker())
        self.callback(self._models.close)

    def plan(self) -> MemoryPlan:
        return self._run("planning", self._planned)

    def load(self) -> LoadedModels:
        memory_plan, prepared = self.plan(), self._models.prepared
        if too_large := process.note_on_plan(memory_plan.planned_bytes):
            # the kernel would end the process, in a control group without a word
            raise BudgetError(too_large)
        loaded: dict[str, LanguageModel] = {}
        with ExitStack() as on_failure:
            for owner, one in reversed([*zip(("target", "draft"), prepared, strict=False)]):
                loaded[owner] = self._run(owner, partial(one.load, memory_plan, self._see))
                on_failure.callback(loaded[owner].close)
                heap.trim_heap()  # memory of loading, before the target needs its own
                self._report |= {f"{owner}: {name}": s for name, s in one.seconds.items()}
            target, draft = loaded["target"], loaded.get("draft")
            if draft is not None:
                draft.borrow_from(target)
            self._report["total"] = time.perf_counter() - self._began
            # runtimes may add notes while loading
            memory_plan = replace(memory_plan, notes=self._notes(memory_plan))
            cuts = self._models.target.needs().cuts
            on_failure.pop_all()
        return LoadedModels(target, draft, memory_plan, self._report, self._models.settings, cuts)

    def _see(self, what: str, share: float) -> None:
        self._doing = what, share

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(*self._doing)

    def _cancel(self) -> None:
        for prepared in self._models.prepared:
            prepared.cancel()

    def _run(self, phase: str, call: Callable[[], T]) -> T:
        """Result of `call` in the worker; what the progress callback raises ends it."""
        began = time.perf_counter()
        try:
            with self._trace.span(Track.ENGINE, phase):
                return self._worker.run(call, self._cancel, self._show)
        finally:
            self._report[phase] = time.perf_counter() - began

    def _planned(self) -> MemoryPlan:
        """The plan, with a shorter context than by default where no other fits."""
        models, given, notes = self._models, self._models.settings, self._given_notes
        sizes = [*SHORT_CTX_SIZES] if not given.ctx_size else []
        while True:
            try:
                return self._planned_texts()
            except BudgetError:
                n_ctx = models.target.info.n_ctx if models.prepared else 0
                if not (sizes := [size for size in sizes if size < n_ctx]):
                    raise
                models.restart(given.model_copy(update={"ctx_size": sizes[0]}))
                note = f"the context has {sizes[0]:,} tokens, as {n_ctx:,} do not fit"
                self._given_notes = (*notes, f"{note} ({setting.ctx_size})")

    def _planned_texts(self) -> MemoryPlan:
        """The plan: texts at once, then whether there is a draft, then the context."""
        models, given = self._models, self._models.settings
        if given.n_parallel == "auto":

            def planned_for(n_texts: int) -> MemoryPlan | None:
                """The plan for so many texts; None if budget, draft or model stand in the way."""
                models.restart(given.model_copy(update={"n_parallel": n_texts}))
                with suppress(BudgetError):
                    found = _with_worthy_draft(models)
                    is_possible = found.smallest_bytes + GROWTH_BYTES <= models.budget_bytes
                    return found if found.n_parallel == n_texts and is_possible else None
                return None

            chosen = texts_at_once(planned_for, given.keeps_one_text_fast)
            n_texts = chosen.n_parallel if chosen else 1
            if models.settings.n_parallel != n_texts:
                models.restart(given.model_copy(update={"n_parallel": n_texts}))
            if chosen and chosen.texts_alter_prompts and chosen.text_bytes:
                models.own_notes.append(
                    f"one text at a time: beside others ({setting.n_parallel}) a text may change, "
                    "and its prompt may take twice as long"
                )
        found = _with_more_cells(models, _with_worthy_draft(models))
        return replace(found, notes=self._notes(found))

    def _notes(self, plan: MemoryPlan) -> tuple[str, ...]:
        """Notes of both models, each once, and what of the settings cannot be reached."""
        models, settings, rules = self._models, self._models.settings, self._models.rules
        notes = [note for model in models.prepared for note in model.notes(plan)]
        notes += [*models.own_notes, *self._given_notes]
        if note := process.note_on_plan(plan.planned_bytes):
            notes.append(note)
        if settings.n_parallel != "auto" and settings.n_parallel > models.target.info.n_slots:
            info = models.prepared[-1].info
            who = f"the head {info.name}" if info.reads_features else models.target.info.name
            waiting = f"{setting.n_parallel(settings.n_parallel)} waits in line"
            notes.append(f"{who} serves one text at a time: {waiting}")
        guesses = settings.draft is not None or rules.lookup or plan.looks_up
        if rules.of_guesses and not guesses:
            given = " and ".join(getattr(setting, name) for name in rules.of_guesses)
            notes.append(
                f"without a draft nothing guesses here: for {given} to have an effect, name a "
                f"draft with {setting.draft}, or give {setting.lookup(True)}"
            )
        return tuple(dict.fromkeys(notes))


def checked(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None,
    progress: Progress | None,
    fields: LoadFields | None = None,
) -> tuple[LoadSettings, EngineSettings, tuple[str, ...]]:
    """The validated arguments, and notes about the draft that they name. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings(model=settings)
    settings = arguments.instance("settings", settings, LoadSettings)
    settings = settings.but(fields) if fields else settings
    found = {"model": _located(settings.model, False, progress)}
    if settings.draft is not None:
        found["draft"] = _located(settings.draft, True, progress)
    settings = settings.model_copy(update=found)
    engine_settings = EngineSettings() if engine_settings is None else engine_settings
    engine_settings = arguments.instance("engine_settings", engine_settings, EngineSettings)
    notes: tuple[str, ...] = ()
    if settings.draft == OWN_DRAFT:
        from edgespec.session.own_draft import settled

        settings, notes = settled(settings, progress)
    return settings, engine_settings, notes


def _located(path: Path, takes_heads: bool, progress: Progress | None) -> Path:
    """The file of a model that may be given by a name, or by its place on Hugging Face's hub, from
    where it is fetched. Raises ModelError, FetchError and UsageError."""
    name = str(path)
    with suppress(OSError):  # too long for a file's name
        if path == OWN_DRAFT or path.exists():
            return path
    if path.name == name and path.suffix not in (".gguf", ".onnx"):
        from edgespec.models import catalogue

        return catalogue.find(name)
    reference = hub_reference.find(name)
    if reference is None:
        return path
    if reference.quant is None and "hf.co/" not in name and "huggingface.co/" not in name:
        raise ModelError(
            f"{name}: no such file; a repository of Hugging Face is fetched as {name}:QUANT, or as "
            f"hf.co/{name}"
        )
    with extras.needed("hub", "fetching models needs huggingface_hub"):
        from edgespec.hub.fetch import Hub
    return Hub().fetch(replace(reference, takes_heads=takes_heads), progress).path


def _with_worthy_draft(models: PreparedModels) -> MemoryPlan:
    """The plan; without a draft that nobody asked for, if it cannot be used or does not pay."""
    settings = models.settings
    if settings.draft is None:
        return models.planned()
    name = settings.draft.name if settings.draft == settings.model else settings.draft.stem
    try:
        paired = models.planned()
    except (BudgetError, ModelError, UsageError) as error:
        if not settings.optional_draft and settings.draft != settings.model:
            raise
        reason = f"{name} does not guess for {settings.model.name}: {marked(error)}"
        models.restart(settings.without_draft(), reason)
        return models.planned()
    copies = models.prepared[1].info.reads_features and models.target.info.copies_features
    if not paired.paged:
        if not (copies and settings.optional_draft):
            return paired
        note = f"{name} makes passes slower where all weights are in memory"
    else:
        without = models.divided(models.target.needs())  # with buffers for guesses
        if paired.bytes_per_pass <= DRAFTED_TOKENS * without.bytes_per_pass:
            return paired
        draft_bytes = sum(row.nbytes for row in paired.rows if row.owner == "draft")
        note = (
            f"{name} takes {format_size(draft_bytes)}, with which a pass reads "
            f"{format_size(paired.bytes_per_pass)}, and without it "
            f"{format_size(without.bytes_per_pass)}: more speed is expected without it"
        )
        if not settings.optional_draft:
            models.own_notes.append(f"{note} ({setting.draft(None)})")
            return paired
    reason = f"{note}, so that it is left out ({setting.draft} asks for it)"
    models.restart(settings.without_draft(), reason)
    return models.planned()


def _with_more_cells(models: PreparedModels, least: MemoryPlan) -> MemoryPlan:
    """The plan with as many tokens of context as texts may use and half of the free memory has
    room for, if short texts are about as fast as by the plan with the `least`.

    A budget that may move keeps all room to do so.
    """
    info, cell_bytes = models.target.info, models.target.needs().cell_bytes
    if not cell_bytes or models.settings.pages_all:
        return least
    longest = info.n_ctx if models.settings.ctx_size else max(info.n_ctx, info.max_ctx)
    n_most = max(longest, info.n_slots * min(longest, DEFAULT_CTX_SIZE))
    needed_bytes = least.smallest_bytes if least.paged else least.planned_bytes
    spare = int(FREE_SHARE * (models.budget_bytes - needed_bytes))
    n_cells = min(n_most, info.n_cells + spare // cell_bytes) // CELL_STEP * CELL_STEP
    while n_cells > info.n_cells:
        with suppress(BudgetError):
            more = models.planned(n_cells)
            if is_as_fast(more, least):
                return replace(more, smallest_bytes=least.smallest_bytes)
        n_cells = n_cells // 2 // CELL_STEP * CELL_STEP
    if models.target.info.n_cells > info.n_cells:
        models.planned(0)
    return least
