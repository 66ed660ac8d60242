"""Opens a target and its draft under one memory budget: headers, plan, weights.

Knows the order of loading and the owners of what is loaded; runtimes, planning and the loop are
elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from edgespec import runtimes
from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.worker import Worker
from edgespec.engine.encoding import max_characters
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError, PairError, UsageError
from edgespec.grammar.specification import GRAMMAR_BYTES, library_bytes
from edgespec.memory import heap, process, requests
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import (
    AUTO_TEXTS,
    FOREST_SIZE,
    FOREST_TEXTS,
    TREE_SIZES,
    best_n_parallel,
    plan_models,
)
from edgespec.memory.stable_count import stable_count
from edgespec.ports import LanguageModel, Progress
from edgespec.ports.features import OffersFeatures, WantsFeatures
from edgespec.runtimes import ModelRequest, PreparedModel, UsesGpu
from edgespec.session.prospect import tokens_per_byte
from edgespec.settings import arguments
from edgespec.settings.config import DEFAULT_DRAFT_CTX_SIZE, LoadSettings
from edgespec.settings.options import Role, refuse_unused
from edgespec.settings.units import format_size
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import ModelInfo

T = TypeVar("T")

GRAMMARS = "grammars"
"""Plan row: memory that all grammars share."""
POOL = "grammars and large answers at work"
"""Plan row: pool for requests with grammars, log probabilities or several choices, which reserve
their bytes of it and wait for them."""
REQUESTS = "requests"
"""Plan row: memory for a server's requests."""
TEXTS_TO_LEARN = "texts to learn from"
"""Plan row: memory for the corrections that `learn` records."""
STATE_FILES = "state files"
"""Plan row: buffers for the largest piece of a state file."""
MAX_BRANCHES = 32
"""llama.cpp keeps vocabulary-sized buffers per sequence, and few trees have more leaves."""
DRAFT_NODES = 1 + MAX_BRANCHES
"""Most nodes per pass of a draft: its steps are small, and each branch needs a buffer."""


def plan(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
) -> MemoryPlan:
    """The memory plan, without reading weights. Raises BudgetError and ModelError.

    A path means default settings for that model, without a draft.
    """
    with _Opening(*_check_arguments(settings, engine_settings, progress)) as opening:
        return opening.plan()


def open_models(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    trace: Trace = OFF,
) -> LoadedModels:
    """The models that `load` loads, without an engine, for programs with an engine of their own.

    `engine_settings` limit the nodes of a pass. Raises the errors of `load`.
    """
    with (
        arguments.instance("trace", trace, Trace).span(Track.ENGINE, "load"),
        _Opening(*_check_arguments(settings, engine_settings, progress), trace) as opening,
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
    path: Path | None = None
    """Path of the target."""

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
    ) -> None:
        self._settings = settings
        self._engine_settings = engine_settings
        self._progress = progress
        self._trace = trace
        self._budget_bytes = process.resolve_budget(settings.memory_budget)
        trace.set_budget(self._budget_bytes)
        self._prepared: list[PreparedModel] = []
        self._own_notes: tuple[str, ...] = ()
        """Notes about the target's own prediction layers (MTP)."""
        self._report: dict[str, float] = {}
        self._began = time.perf_counter()
        self._cleanup = ExitStack()
        self._worker = self._cleanup.enter_context(Worker())

    def close(self) -> None:
        self._cleanup.close()

    def plan(self) -> MemoryPlan:
        if self._settings.n_parallel == "auto":
            fixed = {"n_parallel": self._affordable_texts()}
            self._settings = self._settings.model_copy(update=fixed)
        return self._run("planning", self._plan)

    def _affordable_texts(self) -> int:
        """The best `n_parallel` for the budget, found by planning for several values."""
        plans = []
        for n_texts in AUTO_TEXTS:
            fixed = {"n_parallel": n_texts, "memory_budget": self._budget_bytes}
            settings = self._settings.model_copy(update=fixed)
            try:
                with _Opening(settings, self._engine_settings, self._progress) as trial:
                    planned = trial.plan()
            except BudgetError:
                break
            # with the margin, because this process will have grown before the final plan
            if planned.n_parallel < n_texts or planned.smallest_bytes > self._budget_bytes:
                break
            plans.append(planned)
        heap.trim_heap()
        return best_n_parallel(plans) if plans else 1

    def load(self) -> LoadedModels:
        memory_plan = self.plan()
        with ExitStack() as on_failure:
            draft = None
            if self._settings.draft is not None:
                prepared = self._prepared[1]
                draft = self._run("draft", lambda: prepared.load(memory_plan, self._progress))
                on_failure.callback(draft.close)
                heap.trim_heap()  # memory of loading, before the target needs its own
            target = self._run(
                "target",
                lambda: self._prepared[0].load(memory_plan, self._progress),
            )
            on_failure.callback(target.close)
            for owner, prepared in zip(("target", "draft"), self._prepared, strict=False):
                for phase, seconds in prepared.seconds.items():
                    self._report[f"{owner}: {phase}"] = seconds
            self._report["total"] = time.perf_counter() - self._began
            # runtimes may add notes while loading
            notes = dict.fromkeys((*memory_plan.notes, *self._notes(memory_plan)))
            memory_plan = replace(memory_plan, notes=tuple(notes))
            on_failure.pop_all()
            path = self._settings.model.absolute()
            return LoadedModels(target, draft, memory_plan, self._report, path)

    def _run(self, phase: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            with self._trace.span(Track.ENGINE, phase):
                return self._worker.run(call, self._cancel)
        finally:
            self._report[phase] = time.perf_counter() - began

    def _cancel(self) -> None:
        for prepared in self._prepared:
            prepared.cancel()

    def _prepare(self) -> None:
        """Prepare the target, then the draft: headers, memory needs and the vocabulary check."""
        settings, rules = self._settings, self._engine_settings
        n_threads = settings.threads or process.usable_cores()
        guesses = settings.draft or rules.lookup
        n_texts = 1
        if settings.n_parallel != "auto" and not rules.draws_guesses:
            n_texts = settings.n_parallel
        sizes = _tree_sizes(rules, n_texts) if guesses else (1,)
        max_nodes, *fewer_nodes = dict.fromkeys(max(size, n_texts) for size in sizes)
        request = ModelRequest(
            path=settings.model,
            owner="target",
            ctx_size=settings.ctx_size,
            max_nodes=max_nodes,
            max_branches=min(MAX_BRANCHES, max_nodes) if guesses else 1,
            n_threads=n_threads,
            n_texts=n_texts,
            fewer_nodes=tuple(fewer_nodes),
            batch_size=settings.batch_size,
            budget_bytes=self._budget_bytes,
            trace=self._trace,
        )
        with self._trace.span(Track.ENGINE, "import"):
            runtime = runtimes.find(request.path)
            draft_runtime = runtimes.find(settings.draft) if settings.draft else None
        models: dict[Role, tuple[Path, str]] = {"target": (settings.model, runtime.name)}
        if settings.draft and draft_runtime:
            models["draft"] = (settings.draft, draft_runtime.name)
        refuse_unused(settings.options, models)
        request = replace(request, options=settings.options.get(runtime.name))
        target = self._adopt(runtime.prepare(request))
        if settings.draft is None or draft_runtime is None:
            return
        # the draft's trained context, but no more than the target's or the draft's window
        window = settings.ctx_size_draft or DEFAULT_DRAFT_CTX_SIZE
        request_of_draft = replace(
            request,
            path=settings.draft,
            owner="draft",
            target=settings.model,
            ctx_size=0,
            max_ctx=min(target.info.n_ctx, window),
            target_ctx=target.info.n_ctx,
            max_nodes=min(max_nodes, DRAFT_NODES),
            fewer_nodes=(),
            options=settings.options.get(draft_runtime.name),
            n_threads=settings.threads_draft or n_threads,
        )
        draft = self._adopt(draft_runtime.prepare(request_of_draft))
        check_pair(target, draft)
        if isinstance(draft, WantsFeatures):
            if not isinstance(target, OffersFeatures):
                raise ModelError(
                    f"{target.info.name} does not give its hidden states, which the head "
                    f"{draft.info.name} reads: name a GGUF or ONNX target, or a whole model as "
                    "the draft"
                )
            if settings.draft == settings.model:
                _check_own_layers(target.info)
            if target.info.n_texts > 1:  # a head follows one text
                target.close()
                target = runtime.prepare(replace(request, n_texts=1))
                self._cleanup.callback(target.close)
                self._prepared[0] = target
            assert isinstance(target, OffersFeatures)
            target.offer_features(draft.feature_layers, draft.feature_values)

    def _adopt(self, prepared: PreparedModel) -> PreparedModel:
        self._prepared.append(prepared)
        self._cleanup.callback(prepared.close)
        return prepared

    def _plan(self) -> MemoryPlan:
        """The plan; without the target's own prediction layers (MTP) if they cannot be used."""
        settings = self._settings
        if settings.draft is None or settings.draft != settings.model:
            return self._planned()
        try:
            return self._planned()
        except (BudgetError, ModelError, UsageError) as error:
            if not runtimes.guesses_itself(settings.model):
                raise
            self._settings = settings.model_copy(update={"draft": None})
            close_all(*(prepared.close for prepared in self._prepared))
            self._prepared.clear()
            self._own_notes = (f"{settings.model.name} does not guess for itself: {error}",)
            return self._planned()

    def _planned(self) -> MemoryPlan:
        self._prepare()
        gpu_budget_bytes, gpu_rows = self._place_on_gpu()
        planned = self._divide()
        return replace(
            planned,
            notes=(*planned.notes, *self._notes(planned)),
            ctx_size=self._prepared[0].info.n_ctx,
            n_parallel=self._n_parallel,
            gpu_budget_bytes=gpu_budget_bytes,
            gpu_rows=gpu_rows,
        )

    def _divide(self) -> MemoryPlan:
        """The plan that divides memory among the prepared models. Raises BudgetError."""
        target = self._prepared[0]
        needs = [prepared.needs() for prepared in self._prepared]
        others = []
        grammars, logprobs = self._settings.grammars, self._settings.logprobs
        if grammars:
            others.append(MemoryRow("process", GRAMMARS, library_bytes(target.info.n_vocab)))
        grammar_bytes = GRAMMAR_BYTES if grammars else 0
        if nbytes := requests.pool_bytes(grammar_bytes, logprobs, self._n_parallel):
            others.append(MemoryRow("process", POOL, nbytes))
        if self._settings.most_body_bytes is not None:
            others.append(MemoryRow("process", REQUESTS, self._request_bytes(target)))
        if self._engine_settings.learn:
            from edgespec.engine import corrections

            nbytes = corrections.bytes_needed(target.info.n_vocab, self._n_parallel)
            others.append(MemoryRow("process", TEXTS_TO_LEARN, nbytes))
        if self._settings.state_files:
            max_bytes = max(need.state_bytes for need in needs)
            others.append(MemoryRow("process", STATE_FILES, max_bytes))
        heap.trim_heap_top()  # contexts created for measuring are rows of their own
        footprint_bytes = stable_count(process.footprint_bytes())
        try:
            return plan_models(
                self._budget_bytes,
                process.round_up_to_step(footprint_bytes),
                needs[0],
                needs[1] if len(needs) > 1 else None,
                score=partial(tokens_per_byte, n_texts=self._n_parallel),
                enforced=target.enforced,
                largest_process_bytes=process.round_up_to_step(
                    footprint_bytes + process.PROCESS_SPREAD_BYTES
                ),
                others=others,
            )
        except BudgetError as error:
            message = "; ".join([str(error), *target.notes()])
            raise BudgetError(message, error.smallest_bytes) from error

    def _request_bytes(self, target: PreparedModel) -> int:
        n_ctx, longest = target.info.n_ctx, max(map(len, target.tokens()))
        body_bytes = self._settings.most_body_bytes or requests.max_body_bytes(n_ctx)
        return requests.bytes_needed(body_bytes, max_characters(longest, n_ctx))

    def _notes(self, plan: MemoryPlan | None = None) -> tuple[str, ...]:
        """Notes of both models, each once, and what of the settings cannot be reached."""
        notes = dict.fromkeys(note for model in self._prepared for note in model.notes(plan))
        notes |= dict.fromkeys(self._own_notes)
        if plan is not None and plan.planned_bytes > (total_bytes := process.total_bytes()):
            notes[
                f"this machine has {format_size(total_bytes)} of memory for this process, less "
                f"than the {format_size(plan.planned_bytes)} planned: lower --memory-budget"
            ] = None
        wanted, n_parallel = self._settings.n_parallel, self._n_parallel
        if wanted != "auto" and wanted > n_parallel:
            reason = self._prepared[0].info.name
            if self._engine_settings.draws_guesses:
                reason = f"the acceptance rule {self._engine_settings.acceptance}"
            elif isinstance(self._prepared[-1], WantsFeatures):
                reason = f"the head {self._prepared[-1].info.name}"
            notes[f"{reason} serves one text at a time: --parallel {wanted} waits in line"] = None
        return tuple(notes)

    @property
    def _n_parallel(self) -> int:
        """Number of texts generated at once."""
        return 1 if self._engine_settings.draws_guesses else self._prepared[0].info.n_texts

    def _place_on_gpu(self) -> tuple[int, tuple[MemoryRow, ...]]:
        """Budget and plan rows of the GPU's memory.

        The draft is placed first, because it computes several times per round. Raises UsageError
        for a GPU budget if no model uses a GPU.
        """
        wanted = self._settings.gpu_memory_budget
        there = [
            (model, model.gpu_memory)
            for model in reversed(self._prepared)
            if isinstance(model, UsesGpu) and model.gpu_memory
        ]
        if not there:
            if wanted is not None:
                complaint = "--gpu-memory-budget: no GPU computes a model here, leave it out"
                raise UsageError("; ".join([complaint, *self._notes()]))
            return 0, ()
        _, gpu = there[0]
        budget_bytes = process.resolve_gpu_budget(wanted, gpu.free_bytes, gpu.total_bytes)
        rows = [MemoryRow("process", f"libraries of {gpu.name}", gpu.reserved_bytes)]
        for model, _ in there:
            rows += model.place(max(0, budget_bytes - sum(row.nbytes for row in rows)))
        if len(rows) == 1:  # nothing fits
            return budget_bytes, ()
        return budget_bytes, tuple(rows)


def _check_arguments(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None,
    progress: Progress | None,
) -> tuple[LoadSettings, EngineSettings, Progress | None]:
    """The validated arguments. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings(model=Path(settings))
    if engine_settings is None:
        engine_settings = EngineSettings()
    settings = arguments.instance("settings", settings, LoadSettings)
    engine_settings = arguments.instance("engine_settings", engine_settings, EngineSettings)
    if engine_settings.learn and settings.draft is None:
        raise UsageError(
            f"{settings.names.of('learn')} keeps texts for a draft to learn from: name one with "
            f"{settings.names.of('draft')}"
        )
    return settings, engine_settings, arguments.callback("progress", progress)


def _check_own_layers(target: ModelInfo) -> None:
    """Raise UsageError if the target's own prediction layers (MTP) would never be used."""
    if target.n_texts > 1:
        raise UsageError(
            f"its layer for guessing follows one text, and --parallel asks for {target.n_texts}"
        )


def _tree_sizes(rules: EngineSettings, n_texts: int) -> tuple[int, ...]:
    """Tree sizes that the plan may choose for `n_texts` texts, largest first."""
    if rules.pins_draft_max:
        return (1 + rules.draft_max,)
    return (FOREST_SIZE, *TREE_SIZES) if n_texts >= FOREST_TEXTS else TREE_SIZES


def check_pair(target: PreparedModel, draft: PreparedModel) -> None:
    """Raise PairError at the first token id that has different text in the two models."""
    ours, theirs = target.tokens(), draft.tokens()
    for token, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            raise PairError(
                f"draft and target have different vocabularies: token {token} is {_shown(left)} "
                f"in {target.info.name} and {_shown(right)} in {draft.info.name}: "
                "choose a draft of the target's family"
            )
    if len(ours) != len(theirs):
        raise PairError(
            f"draft and target have different vocabularies: token {min(len(ours), len(theirs))} is "
            f"in only one of them ({len(ours)} tokens in {target.info.name}, {len(theirs)} in "
            f"{draft.info.name}): choose a draft of the target's family"
        )


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="replace"))
