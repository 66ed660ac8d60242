"""The entry point for applications: a target and its draft, loaded under one memory budget.

`load` returns a `Session`, `plan` only the memory plan. `opening.py` opens models, `engine/` has
the loop. The module is longer than others, because one class is what programs see: signatures and
docstrings for the most part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from edgespec.chat.chat_sampling import chat_sampling
from edgespec.chat.messages import Message
from edgespec.chat.prompts import ChatPrompt
from edgespec.concurrency.owning import Closeable, close_forgotten
from edgespec.engine.admission import text_limit
from edgespec.engine.engine import Engine
from edgespec.engine.generation import Generation
from edgespec.engine.settings import EngineSettings
from edgespec.engine.state_store import state_file
from edgespec.errors import StateError, UsageError
from edgespec.files import cache_folder
from edgespec.grammar.specification import GRAMMARS_AT_ONCE, Grammar, new_compiler
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.ports import Progress
from edgespec.ports.text_request import Constraint, TextRequest
from edgespec.session.opening import LoadedModels, open_models, plan
from edgespec.session.session_budget import BudgetReport, SessionBudget
from edgespec.session.tokenizer import Tokenizer
from edgespec.settings import arguments
from edgespec.settings.config import LoadFields, LoadSettings, SamplingFields, SamplingParams
from edgespec.state.prefix_cache import PrefixCache
from edgespec.tracing.spans import OFF, Trace
from edgespec.values import GenerationResult, MemoryStats, ModelInfo, PagingStats

if TYPE_CHECKING:
    from edgespec.completions.requests import Prompts
    from edgespec.completions.running_request import Chunks
    from edgespec.completions.service import Completions
    from edgespec.grammar.matcher import GrammarCompiler

__all__ = ["LoadedModels", "Session", "load", "open_models", "plan"]


MAX_LOGPROBS = 100
"""Most alternatives of a token; 0: only its own log probability."""


class TextOptions(SamplingFields, total=False):
    """Keyword options of `Session.stream`, which documents them; sampling fields among them."""

    stop: str | Sequence[str]
    progress: Progress | None
    grammar: Grammar | None
    logprobs: int | None


class ChatOptions(TextOptions, total=False):
    """Keyword options of `Session.chat`."""

    sampling: SamplingParams | None
    max_tokens: int | None
    tools: Sequence[Mapping[str, Any]] | None
    template: Mapping[str, Any] | None


def load(
    settings: LoadSettings | str | Path,
    engine_settings: EngineSettings | None = None,
    progress: Progress | None = None,
    trace: Trace = OFF,
    **fields: Unpack[LoadFields],
) -> Session:
    """Load target and draft so that the process stays within the budget from now on.

    `settings` may be a path, a name, or a repository `USER/REPO:QUANT` of Hugging Face, which is
    fetched; `fields` are those of `LoadSettings`. Loading and generating are recorded in `trace`,
    which `open_trace` opens and the caller closes.

    Raises ModelError, PairError, BudgetError, FetchError or UsageError, and then leaves nothing
    open.
    """
    with ExitStack() as on_failure:
        opened = open_models(settings, engine_settings, progress, trace, **fields)
        models = on_failure.enter_context(opened)
        session = Session(models, engine_settings, trace)
        on_failure.pop_all()
        return session


class Session(Closeable):
    """Loaded models that any thread may use; close it to free memory, files and threads.

    Up to `n_parallel` generations run at a time, others wait in line. `close` ends running
    generations, from any thread; afterwards all methods raise SessionClosed.
    """

    def __init__(
        self,
        models: LoadedModels,
        engine_settings: EngineSettings | None = None,
        trace: Trace = OFF,
    ) -> None:
        self.load_report = models.load_report
        """Seconds by phase of loading, and `total`."""
        self._models = models
        target, draft = models.target, models.draft
        self._prefixes: PrefixCache | None = None
        if (given := models.settings) and (path := given.prompt_cache) and given.prompt_cache_size:
            with nullcontext() if given.stores_prefixes else suppress(UsageError, StateError):
                self._prefixes = PrefixCache(path, given.prompt_cache_size, target, draft)
        rules = engine_settings or EngineSettings()
        if rules.lookup is None and models.plan.looks_up:
            rules = rules.model_copy(update={"lookup": True})
        state = state_file(cache_folder.calibrations(), self.target, self.draft)
        self._engine = Engine(
            target,
            draft,
            rules,
            trace=trace,
            state=state if rules.remember else None,
            release=models.close,
            n_grammars=GRAMMARS_AT_ONCE,
            name="the session",
            prefixes=self._prefixes.place if self._prefixes is not None else None,
        )
        self._budget = SessionBudget(models, self._engine)
        self.tokenizer = Tokenizer(target.vocabulary, target.info.n_ctx, self._engine.use())
        """Converts texts to tokens and back, with control tokens as text or as tokens."""
        self._prompts = self.tokenizer.chat_prompts(self.target.name)
        self._compiler: GrammarCompiler | None = None
        self._compiling = threading.Lock()

    @property
    def target(self) -> ModelInfo:
        return self._models.target.info

    @property
    def draft(self) -> ModelInfo | None:
        return self._models.draft.info if self._models.draft else None

    @property
    def eog_tokens(self) -> frozenset[int]:
        """End-of-generation tokens: any of them ends a text."""
        return self._models.target.vocabulary.eog_tokens

    @property
    def paging(self) -> PagingStats:
        """Paging statistics of the target since it was loaded."""
        return self._models.target.paging()

    @property
    def memory(self) -> MemoryStats:
        """The budget, the planned bytes and the peak of the process so far."""
        peak_bytes = process.peak_rss_bytes()
        return MemoryStats(self.plan.budget_bytes, self.plan.planned_bytes, peak_bytes)

    @property
    def n_parallel(self) -> int:
        """Number of generations that can run at once; others wait in line."""
        return self.plan.n_parallel

    @property
    def n_waiting(self) -> int:
        """Number of generations that wait in line."""
        return self._engine.n_waiting

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan; `set_memory_budget` replaces it."""
        return self._budget.plan

    @property
    def budget(self) -> BudgetReport:
        """The memory budget, and what is in memory now."""
        return self._budget.report

    def set_memory_budget(self, size: int | str) -> MemoryPlan:
        """Keep another memory budget from now on, also while texts are written; from any thread.

        `size` is bytes, 6GiB, 512M or 75% of the machine's memory. Returns the new plan once the
        process's memory is within it, which takes a pass at most; a larger budget fills up in the
        passes that follow. With `auto` it follows the free memory, with a size no longer. No text
        changes. Raises BudgetError for a size below `budget.smallest_bytes`, which is large where
        weights cannot be let go (`LoadSettings.adjustable_budget`), UsageError for what is no size,
        WeightReadError, and SessionClosed.
        """
        return self._budget.change(size)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with a BOS token if the model uses one.

        Raises UsageError for a text that is far longer than the context.
        """
        return self.tokenizer.encode(arguments.text("text", text))

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        shown: Mapping[int, str] | None = None,
        **fields: Unpack[SamplingFields],
    ) -> Generation:
        """A generation, which yields tokens as they are accepted and has a `result` at its end.

        `fields` are those of `SamplingParams` and replace those of `sampling`. `grammar` constrains
        the text. With `logprobs`, each token has its log probability and those of that many
        alternatives, as computed by the target. `shown` gives control tokens a text; others add
        none. Raises UsageError immediately for invalid arguments.
        """
        sampling = SamplingParams() if sampling is None else sampling
        arguments.instance("sampling", sampling, SamplingParams)
        if fields:
            sampling = SamplingParams.model_validate({**dict(sampling), **fields})
        request = TextRequest(
            prompt_tokens=tuple(self.tokenizer.prompt(prompt)),
            sampling=sampling,
            max_tokens=None if max_tokens is None else arguments.whole("max_tokens", max_tokens),
            stop=arguments.texts("stop", stop),
            progress=progress,
            constraint=None if grammar is None else self.constraint(grammar),
            n_logprobs=None
            if logprobs is None
            else arguments.whole("logprobs", logprobs, MAX_LOGPROBS),
            shown=shown or {},
            notes=() if grammar is None else grammar.notes,
        )
        return self.submit(request)

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int:
        """Largest number of tokens that may follow a prompt of `n_prompt` tokens."""
        return text_limit(self.target.n_ctx, n_prompt, max_tokens)

    def submit(self, request: TextRequest) -> Generation:
        """A generation of a request such as `stream` builds from its arguments.

        Raises UsageError if the target cannot serve it.
        """
        active = self._engine.admit(request)
        return Generation(self._engine, active, self.load_report["total"], lambda: self.memory)

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        **options: Unpack[TextOptions],
    ) -> GenerationResult:
        """The result of `stream`, run to its end; `options` are those of `stream`."""
        with self.stream(prompt, sampling, max_tokens, **options) as generation:
            generation.run_ahead()
            for _ in generation:
                pass
            return generation.result

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        **options: Unpack[TextOptions],
    ) -> Generation:
        """A generation that answers a conversation, formatted by the model's chat template.

        `messages` are `{"role": "user", "content": "..."}` and so on, `tools` have OpenAI's form,
        `template` has further variables of the template, `options` are those of `stream`. A last
        message of the assistant is continued; the variables `add_generation_prompt` and
        `continue_final_message` say otherwise, as in vLLM. The text is the model's raw output,
        reasoning included. Raises UsageError, and ModelError for a model without a template.
        """
        prompt = self.chat_prompt(messages, tools, template)
        if options.get("grammar") is not None:
            prompt = prompt.closed()
        shown = prompt.hidden_marks
        return self.stream(prompt.tokens, sampling, max_tokens, shown=shown, **options)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """The prompt of a conversation. Raises the errors of `chat`."""
        return self._prompts.prompt(messages, tools, **(template or {}))

    def use_chat_template(self, source: str | None) -> None:
        """Replace the model's chat template; None restores it.

        `source` is Jinja or `chatml`. Raises UsageError for another name, and ModelError for a
        template that fails or leaves out messages.
        """
        prompts = self.tokenizer.chat_prompts(self.target.name, source)
        if source is not None:
            prompts.template()
        self._prompts = prompts

    @property
    def chat_sampling(self) -> dict[str, Any]:
        """Default sampling of `edgespec chat` and `serve`, by fields of `SamplingParams`.

        The values that the model's authors recommend, otherwise llama.cpp's defaults.
        """
        return chat_sampling(self._models.target.vocabulary.chat_format.sampling)

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[True], **fields: Any
    ) -> Chunks: ...

    def create_chat_completion(
        self, messages: Sequence[Message], stream: bool = False, **fields: Any
    ) -> dict[str, Any] | Chunks:
        """OpenAI's `chat.completions.create`, and llama-cpp-python's method of this name.

        Returns a dictionary in OpenAI's format; with `stream` an iterator of chunks, which can be
        cancelled and closed. `fields` are those of the request: temperature, max_tokens, tools, ...
        Raises UsageError for invalid fields, and SessionClosed if the session is closed meanwhile.
        """
        from edgespec.completions.requests import ChatRequest
        from edgespec.completions.running_request import Chunks

        request = ChatRequest.parse({"messages": list(messages), "stream": stream} | fields)
        completion = self._completions().chat(request)
        return Chunks(completion) if stream else completion.whole()

    @overload
    def create_completion(
        self, prompt: Prompts, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    def create_completion(
        self, prompt: Prompts, stream: Literal[True], **fields: Any
    ) -> Chunks: ...

    def create_completion(
        self, prompt: Prompts, stream: bool = False, **fields: Any
    ) -> dict[str, Any] | Chunks:
        """OpenAI's `completions.create`: continues texts; otherwise as `create_chat_completion`.

        Several prompts, and `n` completions of each, are choices of one answer: completion j of
        prompt i has the index `i * n + j` and the seed `seed + j`.
        """
        from edgespec.completions.requests import CompletionRequest
        from edgespec.completions.running_request import Chunks

        text = prompt if isinstance(prompt, str) else list(prompt)
        request = CompletionRequest.parse({"prompt": text, "stream": stream} | fields)
        completion = self._completions().text(request)
        return Chunks(completion) if stream else completion.whole()

    def _completions(self) -> Completions:
        from edgespec.completions.service import Completions

        def check_open() -> None:
            with self._engine.use():
                pass

        return Completions(self, check_open=check_open)

    def warn_with(self, tell: Callable[[str], None]) -> None:
        """Call `tell`, in any thread, with warnings that are about no single text; otherwise they
        are notes of the next text's result."""
        if self._prefixes is not None:
            self._prefixes.folder.tell = tell

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text. Raises UsageError for an unknown token."""
        token = arguments.whole("the token", token)
        with self._engine.use():
            return self._models.target.vocabulary.piece(token)

    def constraint(self, grammar: Grammar) -> Constraint:
        """A constraint by `grammar` for one request. Raises UsageError and GrammarError."""
        vocabulary = self._models.target.vocabulary
        with self._engine.use(), self._compiling:
            if self._compiler is None:
                self._budget.keep_for_grammars(vocabulary)
                with self._engine.use():
                    self._compiler = new_compiler(vocabulary, self.target.n_vocab)
            return self._compiler.start(arguments.instance("grammar", grammar, Grammar))

    def cancel(self) -> None:
        """End all running and waiting generations soon, from any thread."""
        self._engine.cancel()

    def close(self) -> None:
        """Cancel all generations, wait for them and free everything. Idempotent, from any thread.

        Raises UsageError in a callback of the session itself.
        """
        _close(self._engine, self._budget)

    def __del__(self) -> None:
        engine: Engine | None = getattr(self, "_engine", None)
        if engine is not None and not engine.is_closed:
            close_forgotten(self, partial(_close, engine, self._budget))


def _close(engine: Engine, budget: SessionBudget) -> None:
    """End the threads of a session; a budget that is being changed ends with the engine."""
    engine.close()
    budget.close()
