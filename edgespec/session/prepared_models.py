"""A target and its draft before loading: prepared, and with the budget divided between them.

Reads headers and no weights. Knows settings and needs; `opening` chooses between plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from edgespec import registry
from edgespec.concurrency.owning import Closeable, close_all
from edgespec.concurrency.worker import raise_if_cancelled
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources import lookup
from edgespec.errors import BudgetError, ModelError, PairError, UsageError, marked, setting
from edgespec.memory import heap, process
from edgespec.memory.budget import REQUESTS, MemoryPlan, MemoryRow
from edgespec.memory.division import plan_models
from edgespec.memory.needs import ModelNeeds, tree_sizes
from edgespec.paging.disk_speed import USUAL_BYTES_PER_S
from edgespec.registry import ModelRequest, PreparedModel, Runtime
from edgespec.session import strategy
from edgespec.session.strategy import Speed
from edgespec.settings.config import DRAFT_CTX_SIZE, LoadSettings
from edgespec.settings.options import Role, refuse_unused
from edgespec.tracing.spans import Trace, Track

MAX_BRANCHES = 32
"""llama.cpp keeps vocabulary-sized buffers per sequence, and few trees have more leaves."""
DRAFT_NODES = 1 + MAX_BRANCHES
"""Most nodes per pass of a draft: its steps are small, and each branch needs a buffer."""
N_LOOKUPS = 16
"""Most guesses of a pass where they come from the texts alone."""
SAMPLING_BYTES_PER_TOKEN = 32
"""Memory per token of the vocabulary for a draw: adjusted logits in single and double precision,
and tokens in order, where filters leave most of a flat distribution. Before the first draw, texts
of the tokens take the same memory while a model is loaded."""


class PreparedModels(Closeable):
    """A target and its draft whose needs are known, for one budget; `close` frees them."""

    def __init__(
        self, settings: LoadSettings, rules: EngineSettings, budget_bytes: int, trace: Trace
    ) -> None:
        self.settings = settings
        """The settings, without a draft that is left out."""
        self.rules = rules
        self.budget_bytes = budget_bytes
        self.own_notes: list[str] = []
        """Notes about the draft: why it is left out, or that it slows texts down."""
        self.prepared: list[PreparedModel] = []
        """The target, then the draft."""
        self._trace = trace

    @property
    def target(self) -> PreparedModel:
        return self.prepared[0]

    @property
    def _may_look_up(self) -> bool:
        """True if the plan decides whether guesses come from the text."""
        return self.settings.draft is None and self.rules.lookup is None

    def close(self) -> None:
        """Close the models. Idempotent; they can be prepared again."""
        close_all(*(prepared.close for prepared in self.prepared))
        self.prepared.clear()

    def restart(self, settings: LoadSettings, *notes: str) -> None:
        """Prepare the models anew, with other settings and notes."""
        self.close()
        self.own_notes = [*notes]
        self.settings = settings

    def planned(self, n_cells: int | None = None) -> MemoryPlan:
        """The plan without notes, with this number of KV cells for the target's texts.

        The models are prepared if they are not; places of a GPU's memory are given first. Raises
        BudgetError, and the errors of preparing.
        """
        if not self.prepared:
            with ExitStack() as on_failure:
                on_failure.callback(self.close)
                self._prepare()
                on_failure.pop_all()
        if n_cells is not None:
            self.target.share_cells(n_cells)
        gpu_budget_bytes, gpu_rows = self._place_on_gpu(self.settings.gpu_memory_budget)
        target, *others = (prepared.needs() for prepared in self.prepared)
        reads_features = self.prepared[-1].info.reads_features  # such a draft follows one text
        return replace(
            self.divided(target, *others),
            enforced=self.target.enforced,
            ctx_size=self.target.info.n_ctx,
            n_parallel=self.target.info.n_slots,
            text_bytes=0 if reads_features else sum(one.text_bytes for one in (target, *others)),
            texts_alter_prompts=target.texts_alter_prompts,
            gpu_budget_bytes=gpu_budget_bytes,
            gpu_rows=gpu_rows,
        )

    def divided(self, *needs: ModelNeeds) -> MemoryPlan:
        """The division of the budget by the needs of the target, or of both models. Raises
        BudgetError."""
        raise_if_cancelled()
        settings, info = self.settings, self.target.info
        n_texts, disk_bytes_per_s = info.n_slots, settings.read_limit or USUAL_BYTES_PER_S
        speed = Speed(disk_bytes_per_s, settings.threads or process.usable_cores())
        drawing_bytes = info.n_vocab * SAMPLING_BYTES_PER_TOKEN + lookup.BYTES
        reserved_bytes = settings.reserve + settings.reserve_of_token * info.n_ctx

        fewer = [f"fewer texts at once ({setting.n_parallel}) need less"] if n_texts > 1 else []
        return divided_budget(
            self.budget_bytes,
            settings,
            *needs,
            choose=lambda plans: strategy.best_plan(plans, speed, n_texts, self._may_look_up),
            request_bytes=drawing_bytes + reserved_bytes,
            advice=(*fewer, *self.target.notes()),
        )

    def _prepare(self) -> None:
        """Prepare the target, then the draft: headers, memory needs and the vocabulary check."""
        settings = self.settings
        paths: dict[Role, Path] = {"target": settings.model}
        if settings.draft is not None:
            paths["draft"] = settings.draft
        with self._trace.span(Track.ENGINE, "import"):
            runtimes = {role: registry.find(path) for role, path in paths.items()}
        refuse_unused(settings.options, {r: (paths[r], one.name) for r, one in runtimes.items()})
        request = self._target_request(runtimes["target"])
        self.prepared.append(runtimes["target"].prepare(request))
        if settings.draft is not None:
            self._prepare_draft(settings.draft, runtimes["draft"], request)
            head = self.prepared[1].info
            if head.reads_features:
                check_head(settings, *self.prepared)
                if self.target.info.n_slots > 1:  # a head follows one text
                    self.target.close()
                    self.prepared[0] = runtimes["target"].prepare(replace(request, n_slots=1))
                self.target.offer_features(head.feature_layers, head.feature_values)

    def _prepare_draft(self, path: Path, runtime: Runtime, request: ModelRequest) -> None:
        """Prepare the draft beside the target, which has this `request`."""
        settings, target = self.settings, self.target
        request = replace(
            request,
            stores_prefixes=False,
            path=path,
            owner="draft",
            target=settings.model,
            ctx_size=0,
            max_ctx=min(target.info.n_ctx, DRAFT_CTX_SIZE),
            target_ctx=target.info.n_ctx,
            max_nodes=min(request.max_nodes, DRAFT_NODES),
            fewer_nodes=(),
            options=settings.options.get(runtime.name),
        )
        draft = runtime.prepare(request)
        self.prepared.append(draft)
        check_pair(target, draft)
        draft.share_with(target, keeps_copies=settings.pages_all)

    def _target_request(self, runtime: Runtime) -> ModelRequest:
        """The request that the target is prepared for."""
        settings, rules = self.settings, self.rules
        guesses = settings.draft or rules.lookup or self._may_look_up
        n_texts = 1 if settings.n_parallel == "auto" else settings.n_parallel
        sizes = tree_sizes(n_texts) if settings.draft else (n_texts + N_LOOKUPS,)
        if rules.pins_draft_max or not guesses:
            sizes = (1 + rules.draft_max * bool(guesses),)
        if self._may_look_up:
            sizes = (*sizes, 1)
        max_nodes, *fewer_nodes = dict.fromkeys(max(size, n_texts) for size in sizes)
        return replace(
            target_request(settings, runtime, self.budget_bytes),
            max_nodes=max_nodes,
            max_branches=min(MAX_BRANCHES, max_nodes) if guesses else 1,
            n_slots=n_texts,
            fewer_nodes=tuple(fewer_nodes),
            stores_prefixes=settings.stores_prefixes,
            trace=self._trace,
        )

    def _place_on_gpu(self, wanted: int | str | None) -> tuple[int, tuple[MemoryRow, ...]]:
        """Budget and plan rows of the GPU's memory; `wanted` is the setting.

        The draft is placed first, because it computes several times per round. Raises UsageError
        for a GPU budget if no model uses a GPU.
        """
        there = [(model, model.gpu_memory) for model in reversed(self.prepared) if model.gpu_memory]
        if not there:
            if wanted is not None:
                complaint = f"{setting.gpu_memory_budget}: no GPU computes a model, leave it out"
                raise UsageError("; ".join([complaint, *self.target.notes()]))
            return 0, ()
        _, gpu = there[0]
        budget_bytes = process.resolve_gpu_budget(wanted, gpu.free_bytes, gpu.total_bytes)
        rows = [MemoryRow("process", f"libraries of {gpu.name}", gpu.reserved_bytes)]
        for model, _ in there:
            rows += model.place(max(0, budget_bytes - sum(row.nbytes for row in rows)))
        return budget_bytes, tuple(rows) if len(rows) > 1 else ()  # else nothing fits


def check_head(settings: LoadSettings, target: PreparedModel, head: PreparedModel) -> None:
    """Raise ModelError for a target without hidden states for the head, and UsageError if the head
    stands in the way of several texts."""
    if not target.info.gives_features:
        raise ModelError(
            f"{target.info.name} does not give its hidden states, which the head "
            f"{head.info.name} reads: name a GGUF target, or a whole model as the draft"
        )
    is_own = settings.draft == settings.model
    if target.info.n_slots > 1 and (is_own or settings.optional_draft):
        what = "its layer for guessing" if is_own else "a head"
        raise UsageError(
            f"{what} follows one text, and {setting.n_parallel} asks for {target.info.n_slots}"
        )


def check_pair(target: PreparedModel, draft: PreparedModel) -> None:
    """Raise PairError for models with different vocabularies."""
    tokens, made_for = target.tokens(), draft.vocabulary_fingerprint
    if made_for is not None:
        is_same = registry.vocabulary_fingerprint(tokens) == made_for
    else:
        is_same = [*tokens] == [*draft.tokens()]
    if not is_same:
        raise PairError(
            f"{draft.info.name} has another vocabulary than {target.info.name}: choose a draft of "
            "the target's family, or make one from the target (edgespec models draft)"
        )


def target_request(settings: LoadSettings, runtime: Runtime, budget_bytes: int) -> ModelRequest:
    """The request for one text that nothing guesses for."""
    return ModelRequest(
        path=settings.model,
        owner="target",
        ctx_size=settings.ctx_size,
        max_nodes=1,
        max_branches=1,
        n_threads=settings.threads or process.usable_cores(),
        batch_size=settings.batch_size,
        budget_bytes=budget_bytes,
        read_limit=settings.read_limit,
        options=settings.options.get(runtime.name),
    )


def divided_budget(
    budget_bytes: int,
    settings: LoadSettings,
    *needs: ModelNeeds,
    request_bytes: int,
    choose: Callable[[Sequence[MemoryPlan]], MemoryPlan] = itemgetter(0),
    advice: Sequence[str] = (),
) -> MemoryPlan:
    """The division of the budget of this process; `advice` is part of the BudgetError."""
    heap.trim_heap_top()  # what was created for measuring has rows of its own
    try:
        return plan_models(
            budget_bytes,
            process.footprint_bytes(),
            *needs,
            choose=choose,
            others=[MemoryRow("process", REQUESTS, request_bytes)],
            adjustable=settings.pages_all,
        )
    except BudgetError as error:
        chosen = process.auto_note(budget_bytes, settings.memory_budget)
        message = "; ".join([marked(error), *chosen, *advice])
        raise BudgetError(message, error.smallest_bytes) from error
