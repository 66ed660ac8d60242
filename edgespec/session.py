"""Opens a target and its draft under one memory budget and generates text with them.

The door for applications: `load` gives a `Session`, `plan` only says what it would take. Knows the
order of loading and who owns what; runtimes, planning and the loop are elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec import arguments, cache_folder, runtimes
from edgespec.chat.messages import Message
from edgespec.chat.prompts import ChatPrompt, ChatPrompts
from edgespec.chat_format import ChatFormat, HasChatFormat
from edgespec.config import LoadSettings
from edgespec.engine.admission import encoded_prompt
from edgespec.engine.drafting.remembering import CalibrationFile
from edgespec.engine.loop import Engine
from edgespec.engine.sampling import Constraint, SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sharing import SharedEngine
from edgespec.errors import BudgetError, PairError, UsageError
from edgespec.generation import Generation
from edgespec.grammar.compiling import bytes_needed, new_compiler
from edgespec.grammar.specification import Grammar
from edgespec.memory import process
from edgespec.memory.budget import (
    MIB,
    MemoryPlan,
    MemoryRow,
    least_bytes,
    loaded_before,
    plan_memory,
)
from edgespec.owning import Owner, close_forgotten
from edgespec.ports import LanguageModel, Progress
from edgespec.runtimes import ModelRequest, PreparedModel, Shrinks, UsesGpu, experts_of
from edgespec.tracing import OFF, Trace, Track
from edgespec.values import GenerationResult, ModelInfo, PagingStats
from edgespec.worker import Worker

if TYPE_CHECKING:
    from edgespec.completions.completion import ChatCompletion, TextCompletion
    from edgespec.grammar.matcher import GrammarCompiler

T = TypeVar("T")

HEADROOM_BYTES = 16 * MIB
HEADROOM_SHARE = 0.01
"""Of the other rows; both cover what no row names: graphs, threads, buffers of Python."""
RSS_SPREAD = 0.03
"""Of the process as it is before loading: runs of one command differ by that, with the libraries'
pages that happen to be cached. A budget that is named must work in the next run."""
GRAMMARS = "grammars"
"""The row of a plan that keeps memory for structured answers."""
MOST_LOGPROBS = 100
MAX_BRANCHES = 32
"""llama.cpp keeps vocabulary-sized buffers per sequence, and few trees have more leaves."""


def plan(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
) -> MemoryPlan:
    """Who would get which bytes, without reading weights. Raises BudgetError and ModelError.

    A path stands for the settings of a model that decodes alone.
    """
    with _Opening(*_meant(settings, engine_settings, progress)) as opening:
        return opening.plan()


def load(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    trace: Trace = OFF,
) -> Session:
    """Load target and draft so that the process stays within the budget from now on.

    A path stands for the settings of a model that decodes alone. Loading and generating are
    recorded in `trace`: `open_trace` opens one, the caller closes it.
    Raises ModelError, PairError, BudgetError or UsageError, and leaves nothing behind then.
    """
    with ExitStack() as on_failure:
        models = on_failure.enter_context(open_models(settings, engine_settings, progress, trace))
        session = Session(models, engine_settings, trace)
        on_failure.pop_all()
        return session


def open_models(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    trace: Trace = OFF,
) -> LoadedModels:
    """What `load` loads, without an engine: for whoever runs engines of his own over the models.

    A pass of theirs verifies at most the nodes that `engine_settings` say. Raises what `load` does.
    """
    with (
        arguments.instance("trace", trace, Trace).span(Track.ENGINE, "load"),
        _Opening(*_meant(settings, engine_settings, progress), trace) as opening,
    ):
        return opening.load()


@dataclass(frozen=True, slots=True)
class LoadedModels(Owner):
    """A target and its draft, loaded under one plan; close them together."""

    target: LanguageModel
    draft: LanguageModel | None
    plan: MemoryPlan
    load_report: dict[str, float]
    """Seconds by phase of loading, and `total`."""

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.target.close()
        if self.draft:
            self.draft.close()


class Session(Owner):
    """A loaded pair, which any thread may use; close it to free memory, files and threads.

    One generation runs at a time, others wait in line. `close` ends what runs, from any thread;
    afterwards everything raises SessionClosed.
    """

    def __init__(
        self,
        models: LoadedModels,
        engine_settings: EngineSettings | None = None,
        trace: Trace = OFF,
    ) -> None:
        self.plan = models.plan
        self.load_report = models.load_report
        """Seconds by phase of loading, and `total`."""
        self._models = models
        target, draft = models.target, models.draft
        memory = None
        if engine_settings is None or engine_settings.remember:
            draft_info = draft.info if draft else None
            memory = CalibrationFile(cache_folder.calibrations(), target.info, draft_info)
        engine = Engine(target, draft, engine_settings, trace=trace, memory=memory)
        self._engine = SharedEngine(engine, models.close)
        self._prompts = self._new_prompts()
        self._compiler: GrammarCompiler | None = None
        self._compiling = threading.Lock()

    @property
    def target(self) -> ModelInfo:
        return self._models.target.info

    @property
    def draft(self) -> ModelInfo | None:
        return self._models.draft.info if self._models.draft else None

    @property
    def paging(self) -> PagingStats:
        """What the target pages, and what that has cost since it was loaded."""
        return self._models.target.paging()

    @property
    def is_closed(self) -> bool:
        return self._engine.is_closed

    @property
    def n_waiting(self) -> int:
        """Generations that wait for the one that runs."""
        return self._engine.n_waiting

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the model's BOS if it wants one."""
        text = arguments.text("text", text)
        with self._engine.use():
            return self._models.target.vocabulary.encode(text)

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
    ) -> Generation:
        """A generation, which yields tokens as they are accepted and has a `result` at its end.

        `grammar` says what the text has to look like. With `logprobs` each token comes with its
        log probability and those of so many others, the target's own.
        Raises UsageError at once for what cannot be meant.
        """
        if isinstance(prompt, str):
            text, target = arguments.text("the prompt", prompt), self._models.target
            with self._engine.use():
                tokens = encoded_prompt(text, target.vocabulary, target.info.n_ctx)
        else:
            tokens = arguments.token_ids("the prompt", prompt)
        request = self._engine.request(
            tokens,
            SamplingParams()
            if sampling is None
            else arguments.instance("sampling", sampling, SamplingParams),
            None if max_tokens is None else arguments.whole("max_tokens", max_tokens),
            arguments.texts("stop", stop),
            arguments.callback("progress", progress),
            None if grammar is None else self._constraint(grammar),
            None if logprobs is None else _n_logprobs(logprobs),
        )
        return Generation(
            self._engine, request, self._models.target.paging, self.load_report["total"], owner=self
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
    ) -> GenerationResult:
        """The result of a `stream` that is run to its end."""
        with self.stream(
            prompt, sampling, max_tokens, stop, progress, grammar, logprobs
        ) as generation:
            for _ in generation:
                pass
            return generation.result

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Generation:
        """The `stream` of an answer to a conversation, by the model's own chat template.

        `messages` are `{"role": "user", "content": "..."}` and so on, `tools` in OpenAI's shape,
        `variables` what else the template knows. The text is as the model writes it, reasoning
        included. Raises UsageError, and ModelError for a model without a template.
        """
        prompt = self.chat_prompt(messages, tools, **variables)
        return self.stream(prompt.tokens, sampling, max_tokens, stop, progress, grammar, logprobs)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> ChatPrompt:
        """A conversation as the target reads it. Raises what `chat` does."""
        return self._prompts.prompt(messages, tools, **variables)

    def use_chat_template(self, source: str | None) -> None:
        """Take this template in the place of the model's own; None takes that again.

        Raises ModelError for a template that is none.
        """
        prompts = self._new_prompts(source)
        if source is not None:
            prompts.template()
        self._prompts = prompts

    def create_chat_completion(
        self, messages: Sequence[Message], stream: bool = False, **fields: Any
    ) -> dict[str, Any] | ChatCompletion:
        """OpenAI's `chat.completions.create`, and llama-cpp-python's method of this name.

        A dictionary in OpenAI's shape; with `stream` an iterator of chunks, which can be cancelled
        and closed. `fields` are those of the request: temperature, max_tokens, tools, ...
        Raises UsageError for fields that cannot be meant.
        """
        from edgespec.completions.requests import ChatRequest
        from edgespec.completions.service import Completions

        request = ChatRequest.parse({"messages": list(messages), "stream": stream} | fields)
        completion = Completions(self).chat(request)
        return completion if stream else completion.whole()

    def create_completion(
        self, prompt: str | Sequence[int], stream: bool = False, **fields: Any
    ) -> dict[str, Any] | TextCompletion:
        """OpenAI's `completions.create`; as `create_chat_completion`, for a text to continue."""
        from edgespec.completions.requests import CompletionRequest
        from edgespec.completions.service import Completions

        text = prompt if isinstance(prompt, str) else list(prompt)
        request = CompletionRequest.parse({"prompt": text, "stream": stream} | fields)
        completion = Completions(self).text(request)
        return completion if stream else completion.whole()

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text."""
        with self._engine.use():
            return self._models.target.vocabulary.piece(token)

    def _new_prompts(self, source: str | None = None) -> ChatPrompts:
        engine, vocabulary = self._engine, self._models.target.vocabulary

        def encode(text: str) -> list[int]:  # knows no session, which may be forgotten
            with engine.use():
                return vocabulary.encode(text, add_special=False)

        told = vocabulary.chat_format if isinstance(vocabulary, HasChatFormat) else ChatFormat()
        return ChatPrompts(self.target.name, told, encode, source)

    def _constraint(self, grammar: Grammar) -> Constraint:
        if self.plan.paged and not any(row.what == GRAMMARS for row in self.plan.rows):
            raise UsageError(
                "structured answers need memory that this session's budget does not hold: load it "
                "with LoadSettings(..., grammars=True)"
            )
        with self._engine.use(), self._compiling:
            if self._compiler is None:
                self._compiler = new_compiler(self._models.target.vocabulary, self.target.n_vocab)
            return self._compiler.start(arguments.instance("grammar", grammar, Grammar))

    def cancel(self) -> None:
        """From any thread: end all generations soon, the one that runs and those that wait."""
        self._engine.cancel()

    def close(self) -> None:
        """Cancel what runs, wait for it and free everything. Idempotent, from any thread.

        Raises UsageError within a callback of the session's own.
        """
        self._engine.close()

    def __del__(self) -> None:
        engine: SharedEngine | None = getattr(self, "_engine", None)
        if engine is not None and not engine.is_closed:
            close_forgotten(self, engine.close)


def _n_logprobs(value: Any) -> int:
    """Of a caller; 0 tells the chosen token's alone."""
    number = arguments.whole("logprobs", value)
    if not 0 <= number <= MOST_LOGPROBS:
        raise UsageError(f"logprobs must be between 0 and {MOST_LOGPROBS}, not {number}")
    return number


def _meant(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None,
    progress: Progress | None,
) -> tuple[LoadSettings, EngineSettings, Progress | None]:
    """What a caller's arguments mean. Raises UsageError."""
    if isinstance(settings, str | Path):
        settings = LoadSettings(model=Path(settings))
    if engine_settings is None:
        engine_settings = EngineSettings()
    return (
        arguments.instance("settings", settings, LoadSettings),
        arguments.instance("engine_settings", engine_settings, EngineSettings),
        arguments.callback("progress", progress),
    )


class _Opening(Owner):
    """The steps of loading, in a worker thread so that Ctrl-C is heard while native code runs."""

    def __init__(
        self,
        settings: LoadSettings,
        engine_settings: EngineSettings | None,
        progress: Progress | None,
        trace: Trace = OFF,
    ) -> None:
        self._settings = settings
        self._engine_settings = engine_settings or EngineSettings()
        self._progress = progress
        self._trace = trace
        self._budget_bytes = process.resolve_budget(settings.memory_budget)
        trace.set_budget(self._budget_bytes)
        self._prepared: list[PreparedModel] = []
        self._report: dict[str, float] = {}
        self._began = time.perf_counter()
        self._cleanup = ExitStack()
        self._worker = self._cleanup.enter_context(Worker())

    def close(self) -> None:
        self._cleanup.close()

    def plan(self) -> MemoryPlan:
        return self._run("planning", self._plan)

    def load(self) -> LoadedModels:
        memory_plan = self.plan()
        with ExitStack() as on_failure:
            draft = None
            if self._settings.draft is not None:
                prepared = self._prepared[1]
                draft = self._run("draft", lambda: prepared.load(None, self._progress))
                on_failure.callback(draft.close)
                process.return_free_memory()  # what loading took, before the target takes its own
            target = self._run(
                "target",
                lambda: self._prepared[0].load(memory_plan, self._progress),
            )
            on_failure.callback(target.close)
            for owner, prepared in zip(("target", "draft"), self._prepared, strict=False):
                for phase, seconds in prepared.seconds.items():
                    self._report[f"{owner}: {phase}"] = seconds
            self._report["total"] = time.perf_counter() - self._began
            # what a runtime found out only while it loaded is worth knowing, too
            notes = dict.fromkeys((*memory_plan.notes, *self._notes()))
            memory_plan = replace(memory_plan, notes=tuple(notes))
            on_failure.pop_all()
            return LoadedModels(target, draft, memory_plan, self._report)

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
        """Headers, sizes and the vocabulary check: target first, then the draft."""
        settings, rules = self._settings, self._engine_settings
        n_threads = settings.threads or process.usable_cores()
        max_nodes = rules.draft_max + 1 if settings.draft or rules.lookup else 1
        request = ModelRequest(
            path=settings.model,
            owner="target",
            ctx_size=settings.ctx_size,
            max_nodes=max_nodes,
            max_branches=min(MAX_BRANCHES, max_nodes),
            n_threads=n_threads,
            cache_type_k=settings.cache_type_k,
            cache_type_v=settings.cache_type_v,
            flash_attn=settings.flash_attn,
            n_gpu_layers=settings.n_gpu_layers,
            provider=settings.provider,
            batch_size=settings.batch_size,
            budget_bytes=self._budget_bytes,
            trace=self._trace,
        )
        with self._trace.span(Track.ENGINE, "import"):
            runtime = runtimes.find(request.path)
        target = self._adopt(runtime.prepare(request))
        if settings.draft is None:
            return
        # as much context as the target has, or what the draft was trained on
        wanted = replace(
            request,
            path=settings.draft,
            owner="draft",
            ctx_size=0,
            most_ctx=target.info.n_ctx,
            n_gpu_layers=settings.n_gpu_layers_draft,
        )
        draft = self._adopt(runtimes.find(wanted.path).prepare(wanted))
        check_pair(target, draft)

    def _adopt(self, prepared: PreparedModel) -> PreparedModel:
        self._prepared.append(prepared)
        self._cleanup.callback(prepared.close)
        return prepared

    def _plan(self) -> MemoryPlan:
        self._prepare()
        gpu_budget_bytes, gpu_rows = self._place_on_gpu()
        try:
            planned = self._divide()
        except BudgetError:
            # A larger budget has larger batches: the smallest that works has the smallest ones,
            # and is refused with those that its share would allow.
            for model in self._prepared:
                if isinstance(model, Shrinks):
                    model.shrink()
            planned = self._divide()
        return replace(
            planned,
            notes=(*planned.notes, *self._notes()),
            gpu_budget_bytes=gpu_budget_bytes,
            gpu_rows=gpu_rows,
        )

    def _divide(self) -> MemoryPlan:
        """Who of the prepared models gets which bytes of the process's. Raises BudgetError."""
        target = self._prepared[0]
        resident, paged = target.resident_rows(), target.paged_rows()
        segmentations, experts = target.segmentations(), experts_of(target)
        rss_bytes = process.process_rss_bytes()
        rows = [MemoryRow("process", "interpreter and libraries", rss_bytes)]
        fixed = target.fixed_rows()
        later_bytes = least_bytes(fixed, segmentations, resident, paged, experts)
        for prepared in self._prepared[1:]:
            rows += prepared.fixed_rows()
            rows += loaded_before(later_bytes, prepared.resident_rows() or ())
        rows += fixed
        if self._settings.grammars:
            rows.append(MemoryRow("process", GRAMMARS, bytes_needed(target.info.n_vocab)))
        headroom = HEADROOM_BYTES + int(HEADROOM_SHARE * sum(row.nbytes for row in rows))
        rows.append(MemoryRow("process", "headroom", headroom))
        try:
            return plan_memory(
                self._budget_bytes,
                rows,
                segmentations,
                resident,
                paged,
                target.enforced,
                int(RSS_SPREAD * rss_bytes),
                experts,
            )
        except BudgetError as error:
            message = "; ".join([str(error), *target.notes])
            raise BudgetError(message, error.smallest_bytes) from error

    def _notes(self) -> tuple[str, ...]:
        """Of both models; what is true of both is said once."""
        return tuple(dict.fromkeys(note for model in self._prepared for note in model.notes))

    def _place_on_gpu(self) -> tuple[int, tuple[MemoryRow, ...]]:
        """Divide a GPU's memory: its budget, and who gets which bytes of it.

        The draft comes first, because it computes several times a round. Raises UsageError for a
        budget that no model has a use for.
        """
        wanted = self._settings.gpu_memory_budget
        there = [
            (model, model.gpu_memory)
            for model in reversed(self._prepared)
            if isinstance(model, UsesGpu) and model.gpu_memory
        ]
        if not there:
            if wanted is not None:
                complaint = "--gpu-memory-budget: no GPU computes an ONNX model here, leave it out"
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


def check_pair(target: PreparedModel, draft: PreparedModel) -> None:
    """Raise PairError at the first token id that stands for different text in the two models."""
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
