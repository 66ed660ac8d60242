"""Opens a target and its draft under one memory budget: headers, plan, weights.

Knows the order of loading and the owners of what is loaded; runtimes, planning and the loop are
elsewhere. The module is longer than others, because each step undoes those before it if it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edgespec import runtimes
from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.worker import Worker
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, Cancelled, ModelError, UsageError
from edgespec.memory import heap, library_pages, process
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.draft_worth import MIN_GAIN, note_before_loading
from edgespec.memory.needs import ModelNeeds, tree_sizes
from edgespec.memory.places import auto_texts, note_on_one_text
from edgespec.ports import Progress
from edgespec.ports.features import OffersFeatures, WantsFeatures
from edgespec.ports.reduced_head import CanBeTrimmed
from edgespec.ports.shared_weights import BorrowsWeights
from edgespec.runtimes import ChangesNodes, ModelRequest, PreparedModel, SharesWeights
from edgespec.session import draft_choice, pairing, reserving
from edgespec.session.dividing import SessionNeeds
from edgespec.session.given import checked, in_words, in_words_of
from edgespec.session.loaded_models import LoadedModels
from edgespec.session.pairing import check_head, check_pair
from edgespec.settings import arguments
from edgespec.settings.config import DEFAULT_DRAFT_CTX_SIZE, LoadSettings
from edgespec.settings.options import Role, refuse_unused
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec.values import ModelInfo

T = TypeVar("T")

MAX_BRANCHES = 32
"""llama.cpp keeps vocabulary-sized buffers per sequence, and few trees have more leaves."""
DRAFT_NODES = 1 + MAX_BRANCHES
"""Most nodes per pass of a draft: its steps are small, and each branch needs a buffer."""
LOOKUPS = (16, 8)
"""Numbers of guesses that a plan chooses from where they come from the texts alone."""
MOST_FOR_LOOKUPS = 1.05
"""Most that a pass may read, relative to one without guesses, for their buffers' sake: text that
repeats nothing yields 1.05 to 1.2 tokens a pass (Qwen2.5-Coder-1.5B, decision 0130)."""

GROWTH_OF_PREPARING = 0.5
"""Share of what preparing allocated by which the process may grow, through fragments of its heap,
where that is done two times again: 0.27 to 0.36 with an ONNX graph of 30 layers (45 MiB)."""


def plan(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
) -> MemoryPlan:
    """The memory plan, without reading weights. Raises BudgetError and ModelError.

    A path or a name means default settings for that model, without a draft. The budget is that of
    the process: a model that it has loaded already counts.
    """
    with (
        in_words_of(settings),
        _Opening(*checked(settings, engine_settings, progress)) as opening,
    ):
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
        in_words_of(settings),
        arguments.instance("trace", trace, Trace).span(Track.ENGINE, "load"),
        _Opening(*checked(settings, engine_settings, progress), trace) as opening,
    ):
        return opening.load()


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
        self._progress = None if progress is None else self._ending(progress)
        self._ended_by: BaseException | None = None
        """Exception of the progress callback, which ends loading."""
        self._trace = trace
        self._budget_bytes = process.resolve_budget(settings.memory_budget)
        self._prepared: list[PreparedModel] = []
        self._prepared_bytes = 0
        """Bytes that preparing the models allocated, their graphs and vocabularies."""
        self._chose_lookup = False
        """Guesses come from the text because that is the default of a target that pages alone."""
        self._own_notes: tuple[str, ...] = ()
        """Notes about the draft: why it is left out, or that it slows texts down."""
        self._report: dict[str, float] = {}
        self._began = time.perf_counter()
        self._cleanup = ExitStack()
        self._worker = self._cleanup.enter_context(Worker())
        self._cleanup.callback(self._close_prepared)

    def close(self) -> None:
        self._cleanup.close()

    def plan(self) -> MemoryPlan:
        if self._settings.n_parallel == "auto":
            chosen = auto_texts(self._planned_for, self._settings.keeps_one_text_fast)
            fixed = {"n_parallel": chosen.n_parallel if chosen else 1}
            self._settings = self._settings.model_copy(update=fixed)
            if chosen and (note := note_on_one_text(chosen)):
                self._own_notes = (note,)
        planned = self._run("planning", self._plan, self._show_planning)
        return self._with_notes(planned, self._unused_rules())

    def _planned_for(self, n_texts: int) -> MemoryPlan | None:
        """The plan for `n_texts` at once; None if budget, draft or model stand in the way."""
        fixed = {"n_parallel": n_texts, "memory_budget": self._budget_bytes}
        settings, rules = self._settings.model_copy(update=fixed), self._engine_settings
        if settings.draft is None and not rules.lookup:
            rules = rules.but(lookup=False)
        try:
            with _Opening(settings, rules, self._progress) as trial:
                planned = trial.plan()
        except BudgetError:
            return None
        finally:
            heap.trim_heap()
        # with the margin, because this process will have grown before the final plan
        is_possible = planned.smallest_bytes <= self._budget_bytes
        return planned if planned.n_parallel == n_texts and is_possible else None

    def load(self) -> LoadedModels:
        memory_plan = self.plan()
        with ExitStack() as on_failure:
            draft = None
            if self._settings.draft is not None:
                prepared = self._prepared[1]
                draft = self._run("draft", lambda: prepared.load(memory_plan, self._progress))
                on_failure.callback(draft.close)
                heap.trim_heap()  # memory of loading, before the target needs its own
            first, path = self._prepared[0], self._settings.model.absolute()
            target = self._run("target", lambda: first.load(memory_plan, self._progress))
            on_failure.callback(target.close)
            if isinstance(draft, BorrowsWeights):
                draft.borrow_from(target)
            for owner, prepared in zip(("target", "draft"), self._prepared, strict=False):
                for phase, seconds in prepared.seconds.items():
                    self._report[f"{owner}: {phase}"] = seconds
            self._report["total"] = time.perf_counter() - self._began
            # runtimes may add notes while loading
            memory_plan = self._with_notes(memory_plan, self._notes(memory_plan))
            on_failure.pop_all()
            library_pages.release()  # what only loading needed
            needs, budget = first.needs(), self._settings.memory_budget
            return LoadedModels(
                target,
                draft,
                memory_plan,
                self._report,
                path,
                needs,
                budget,
                self._prefix_cache,
                self._chose_lookup,
                self._settings.names,
            )

    @property
    def _prefix_cache(self) -> tuple[Path, int] | None:
        folder = self._settings.prefix_cache
        return None if folder is None else (folder, self._settings.prefix_cache_size)

    def _show_planning(self) -> None:
        """Tell who waits that the models are prepared, which takes seconds."""
        if self._progress is not None:
            self._progress("planning", 0.0)

    def _run(self, phase: str, call: Callable[[], T], check: Callable[[], None] | None = None) -> T:
        """Result of `call` in the worker; `check` is polled meanwhile."""
        began = time.perf_counter()
        try:
            with self._trace.span(Track.ENGINE, phase):
                return self._worker.run(call, self._cancel, check)
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
                self._cancel()

        return report

    def _cancel(self) -> None:
        for prepared in self._prepared:
            prepared.cancel()

    def _prepare(self) -> None:
        """Prepare the target, then the draft: headers, memory needs and the vocabulary check."""
        settings, request = self._settings, self._target_request()
        with self._trace.span(Track.ENGINE, "import"):
            runtime = runtimes.find(request.path)
            draft_runtime = runtimes.find(settings.draft) if settings.draft else None
            library_pages.release()  # what only importing needed
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
            stores_prefixes=False,
            path=settings.draft,
            owner="draft",
            target=settings.model,
            ctx_size=0,
            max_ctx=min(target.info.n_ctx, window),
            target_ctx=target.info.n_ctx,
            max_nodes=min(request.max_nodes, DRAFT_NODES),
            fewer_nodes=(),
            options=settings.options.get(draft_runtime.name),
            n_threads=settings.threads_draft or request.n_threads,
        )
        draft = self._adopt(draft_runtime.prepare(request_of_draft))
        check_pair(target, draft)
        if isinstance(draft, SharesWeights) and not settings.pages_all:
            draft.share_with(target)
        if isinstance(draft, WantsFeatures):
            check_head(settings, target, draft)
            if target.info.n_slots > 1:  # a head follows one text
                target.close()
                self._prepared[0] = target = runtime.prepare(replace(request, n_slots=1))
            assert isinstance(target, OffersFeatures)
            target.offer_features(draft.feature_layers, draft.feature_values)

    def _target_request(self) -> ModelRequest:
        """The request that the target is prepared for, without options of its runtime."""
        settings, rules = self._settings, self._engine_settings
        guesses = settings.draft or rules.lookup
        is_fixed = settings.n_parallel != "auto" and not rules.draws_guesses
        n_texts = int(settings.n_parallel) if is_fixed else 1
        sizes = tree_sizes(n_texts) if settings.draft else [n_texts + n for n in LOOKUPS]
        if rules.pins_draft_max or not guesses:
            sizes = (1 + rules.draft_max * bool(guesses),)
        max_nodes, *fewer_nodes = dict.fromkeys(max(size, n_texts) for size in sizes)
        return ModelRequest(
            path=settings.model,
            owner="target",
            ctx_size=settings.ctx_size,
            max_nodes=max_nodes,
            max_branches=min(MAX_BRANCHES, max_nodes) if guesses else 1,
            n_threads=settings.threads or process.usable_cores(),
            n_slots=n_texts,
            fewer_nodes=tuple(fewer_nodes),
            batch_size=settings.batch_size,
            budget_bytes=self._budget_bytes,
            stores_prefixes=settings.prefix_cache is not None,
            trace=self._trace,
        )

    def _adopt(self, prepared: PreparedModel) -> PreparedModel:
        self._prepared.append(prepared)
        return prepared

    def _plan(self) -> MemoryPlan:
        """The plan; without a draft that nobody asked for, if it cannot be used or does not pay."""
        settings = self._settings
        if settings.draft is None:
            return self._looking_up(self._planned())
        if settings.optional_draft and (alone := self._planned_if_faster_alone()):
            return alone
        try:
            paired = self._planned()
        except (BudgetError, ModelError, UsageError) as error:
            is_own = settings.draft == settings.model and runtimes.guesses_itself(settings.model)
            if not is_own and not settings.optional_draft:
                raise
            whom = "itself" if is_own else settings.model.name
            self._leave_draft_out(f"{self._draft_name} does not guess for {whom}: {error}")
            return self._looking_up(self._planned())
        return self._weighed(paired) if paired.paged else paired

    def _looking_up(self, alone: MemoryPlan) -> MemoryPlan:
        """The plan of a target without a draft that guesses from the text if it pages; `alone` if
        the settings say otherwise, or if the buffers of guesses take too much from the weights.

        Near the smallest budget nothing is tried: a target that has been prepared again needs more.
        """
        rules = self._engine_settings
        if rules.lookup is not None or rules.draws_guesses or not alone.paged:
            return alone
        if not self._prepared[0].info.tree_capable:
            return alone
        room_bytes = self._budget_bytes - alone.smallest_bytes
        if not isinstance(self._prepared[0], ChangesNodes):
            room_bytes -= int(GROWTH_OF_PREPARING * self._prepared_bytes)
        if room_bytes < 0:
            return alone
        self._chose_lookup, self._engine_settings = True, rules.but(lookup=True)
        with suppress(BudgetError):
            guessing = self._planned_again()
            if guessing.streamed_read_bytes <= MOST_FOR_LOOKUPS * alone.streamed_read_bytes:
                return replace(guessing, smallest_bytes=alone.smallest_bytes)
        self._chose_lookup, self._engine_settings = False, rules
        return self._planned_again()

    def _planned_again(self) -> MemoryPlan:
        """The plan of a target that was planned for other numbers of nodes; its file is not read
        again if its runtime needs it only once."""
        target, request = self._prepared[0], self._target_request()
        if not isinstance(target, ChangesNodes):
            del target  # its graph must not stay while it is prepared again
            self._close_prepared()
            return self._planned()
        target.change_nodes(request.max_nodes, request.max_branches, request.fewer_nodes)
        return self._placed()

    def _planned_if_faster_alone(self) -> MemoryPlan | None:
        """The plan without the draft if that is expected to be faster, otherwise None.

        The draft is not opened, since what that takes of the process's memory would stay taken.
        """
        settings, draft = self._settings, pairing.draft_file(self._settings)
        if draft is None or self._budget_bytes > pairing.ample_bytes(settings.model, draft):
            return None
        self._settings = settings.without_draft()
        alone = self._planned()
        if note := self._reason_against(draft, alone):
            self._own_notes = (*self._own_notes, note)
            return self._looking_up(replace(alone, notes=(*alone.notes, note)))
        self._close_prepared()
        self._settings = settings
        return None

    def _reason_against(self, draft: Path, alone: MemoryPlan) -> str | None:
        """A note why the target, which is prepared, stays `alone`; None if the draft may pay."""
        target = self._prepared[0]
        row = pairing.expected_row(target.info, draft)
        try:
            paired = self._divide([target.needs()], [row])
        except BudgetError:
            return pairing.does_not_fit(draft, self._settings.model, row, self._budget_bytes)
        gain = self._gain_without_draft(paired, alone, pairing.described(draft))
        return pairing.left_out(draft.stem, paired, alone, gain) if gain > 1 else None

    def _weighed(self, paired: MemoryPlan) -> MemoryPlan:
        """`paired`, or the plan without the draft if texts are expected to be faster without it.

        A draft that was asked for is used, with a note.
        """
        settings = self._settings
        alone = self._divide([self._prepared[0].needs()])  # with buffers for guesses
        gain = self._gain_without_draft(paired, alone, self._prepared[1].info)
        if settings.optional_draft and gain > 1:
            self._leave_draft_out(pairing.left_out(self._draft_name, paired, alone, gain))
            return self._looking_up(self._planned())
        if settings.optional_draft or gain < MIN_GAIN:
            return paired
        note = note_before_loading(self._draft_name, paired, alone, gain)
        notes = (*paired.notes, f"{note} (--no-draft)")
        return replace(paired, notes=notes, gain_without_draft=gain)

    def _gain_without_draft(
        self, paired: MemoryPlan, alone: MemoryPlan, draft: ModelInfo | None
    ) -> float:
        """Expected speed without the draft, relative to that with it; 0 if unknown."""
        remembers = self._engine_settings.remember
        models = self._prepared[0].info, draft
        return pairing.gain_without_draft(paired, alone, models, self._settings.model, remembers)

    @property
    def _draft_name(self) -> str:
        draft = self._settings.draft
        assert draft is not None
        return draft.name if draft == self._settings.model else draft.stem

    def _leave_draft_out(self, note: str) -> None:
        """Go on without the draft, with a note about the reason."""
        self._settings = self._settings.without_draft()
        self._close_prepared()
        self._own_notes = (*self._own_notes, note)

    def _close_prepared(self) -> None:
        close_all(*(prepared.close for prepared in self._prepared))
        self._prepared.clear()

    def _planned(self) -> MemoryPlan:
        before_bytes = heap.allocated_bytes()
        self._prepare()
        self._prepared_bytes = heap.allocated_bytes() - before_bytes
        return self._placed()

    def _placed(self) -> MemoryPlan:
        """The plan of what is prepared; places of a GPU's memory are given first."""
        wanted = self._settings.gpu_memory_budget
        gpu_budget_bytes, gpu_rows = reserving.place_on_gpu(self._prepared, wanted, self._notes)
        planned = self._divide([prepared.needs() for prepared in self._prepared])
        return replace(
            planned,
            notes=(*planned.notes, *self._notes(planned)),
            ctx_size=self._prepared[0].info.n_ctx,
            n_parallel=self._n_parallel,
            text_bytes=self._text_bytes,
            texts_alter_prompts=self._prepared[0].needs().texts_alter_prompts,
            gpu_budget_bytes=gpu_budget_bytes,
            gpu_rows=gpu_rows,
        )

    def _divide(
        self, needs: Sequence[ModelNeeds], expected: Sequence[MemoryRow] = ()
    ) -> MemoryPlan:
        """The plan for these needs of target and draft, and `expected` rows. Raises BudgetError."""
        wanted = SessionNeeds(
            self._settings,
            self._engine_settings,
            self._prepared[0],
            self._budget_bytes,
            self._n_parallel,
        )
        return wanted.divided(needs, expected)

    def _notes(self, plan: MemoryPlan | None = None) -> tuple[str, ...]:
        """Notes of both models, each once, and what of the settings cannot be reached."""
        notes = dict.fromkeys(note for model in self._prepared for note in model.notes(plan))
        notes |= dict.fromkeys(self._own_notes)
        target = self._prepared[0]
        if plan is not None and self._settings.draft is None and isinstance(target, CanBeTrimmed):
            notes |= dict.fromkeys(draft_choice.hint(plan, target.trimmed_bytes))
        if plan is not None and (note := process.note_on_plan(plan.planned_bytes)):
            notes[note] = None
        rule = self._engine_settings
        reason = f"the acceptance rule {rule.acceptance}" if rule.draws_guesses else None
        if note := pairing.note_on_texts(self._settings, self._prepared, self._n_parallel, reason):
            notes[note] = None
        return tuple(notes)

    def _with_notes(self, plan: MemoryPlan, notes: Iterable[str]) -> MemoryPlan:
        """The plan with these notes after its own, each once, in the caller's words."""
        names = self._settings.names
        said = dict.fromkeys(in_words(note, names) for note in (*plan.notes, *notes))
        return replace(plan, notes=tuple(said))

    def _unused_rules(self) -> Sequence[str]:
        """A note about rules of guessing that were given although nothing guesses."""
        rules = self._engine_settings
        if self._settings.draft is not None or rules.lookup is not None or not rules.of_guesses:
            return ()
        given = " and ".join(self._settings.names.of(name) for name in rules.of_guesses)
        return (
            f"without a draft nothing guesses here: for {given} to have an effect, name a draft "
            "with -md, or give --lookup",
        )

    @property
    def _n_parallel(self) -> int:
        """Number of texts generated at once."""
        return self._engine_settings.n_texts(self._prepared[0].info)

    @property
    def _text_bytes(self) -> int:
        """About what each further text at once takes; 0 if the models write one at a time."""
        follows_one_text = isinstance(self._prepared[-1], WantsFeatures)
        if self._engine_settings.draws_guesses or follows_one_text:
            return 0
        return sum(prepared.needs().text_bytes for prepared in self._prepared)
