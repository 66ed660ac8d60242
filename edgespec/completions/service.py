"""Starts requests in OpenAI's format on a session, whose fields it translates them to."""

from __future__ import annotations

import math
import secrets
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

from edgespec.chat.messages import Message
from edgespec.chat.prompts import ChatPrompt
from edgespec.completions import request_limits
from edgespec.completions.filling import FillingIn
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.reasoned import ReasonedAnswers, Wrap
from edgespec.completions.request_grammars import grammar_of, grammar_of_chat
from edgespec.completions.requests import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    check_tokens,
)
from edgespec.completions.running_request import (
    ChoiceSource,
    Completion,
    OnResult,
    Reply,
)
from edgespec.completions.writing import MessageWriter
from edgespec.errors import ContextOverflow, EdgespecError, ModelError
from edgespec.grammar.specification import (
    GRAMMAR_BYTES,
    Grammar,
)
from edgespec.ports.text_request import Constraint, TextRequest, Tokens
from edgespec.settings.config import SamplingParams
from edgespec.values import ModelInfo


class Generates(Protocol):
    """Protocol of the part of a session that the service uses."""

    @property
    def target(self) -> ModelInfo: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    def chat_prompt(
        self, messages: Sequence[Message], tools: Any = None, template: Any = None
    ) -> ChatPrompt: ...

    def encode(self, text: str) -> list[int]: ...

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int: ...

    def piece(self, token: int) -> bytes: ...

    def constraint(self, grammar: Grammar) -> Constraint: ...

    def submit(self, request: TextRequest) -> Tokens: ...


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt's tokens, stored compactly while the request waits."""

    tokens: array[int]
    param: str
    """Name of its field in the request."""
    shown: Mapping[int, str] = field(default_factory=dict)


@dataclass(eq=False)
class Completions:
    """Starts chat and completion requests for one model."""

    _session: Generates
    model: str = ""
    max_prompt_tokens: int | None = None
    clock: Callable[[], float] = time.time
    sampling: dict[str, Any] = field(default_factory=dict)
    """Defaults of requests, by fields of `SamplingParams`."""
    limits_answers: bool = False
    """True: whole responses with log probabilities or several choices have a server's limits."""
    on_result: OnResult | None = None
    """Called with the result of each generation."""
    n_at_once: Callable[[], int] = lambda: 1
    """Number of generations of a request that may run in parallel."""
    max_tokens: int | None = None
    """Most tokens of a text, whatever a request asks for."""
    fingerprint: str | None = None
    """A name of what decides about a text besides its request."""
    writes_ahead: bool = False
    """True: texts of streams do not wait for whoever takes their chunks."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning, unless a request names another number."""
    check_open: Callable[[], None] = lambda: None
    """Raises SessionClosed once the session is being closed."""

    def __post_init__(self) -> None:
        self.model = self.model or self._session.target.name
        self._reasoned = ReasonedAnswers(self._session)
        self.filling = FillingIn(self._session.encode)

    def piece_of(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._session.piece(token)

    def count_tokens(self, request: ChatRequest) -> int:
        """Number of tokens of a conversation's prompt. Raises UsageError and ModelError."""
        return len(self._prompt(request).tokens)

    def rendered(self, request: ChatRequest) -> str:
        """The text of a conversation's prompt. Raises UsageError and ModelError."""
        return self._with_reasoning(request, self._prompt(request), False)[0].text

    @cached_property
    def template(self) -> str:
        """Source of the chat template; empty if there is none that works."""
        with suppress(EdgespecError):
            return self._session.chat_prompt([{"role": "user", "content": "Hello"}]).template
        return ""

    @cached_property
    def chat_refusal(self) -> str | None:
        """Reason why the model cannot answer conversations; None if it can."""
        try:
            self._session.chat_prompt([{"role": "user", "content": "Hello"}])
        except EdgespecError as error:
            return error.message
        return None

    def chat(
        self, request: ChatRequest, reply: Reply | None = None, client: str = ""
    ) -> Completion:
        """Start the answer to a conversation, which `reply` formats; None: as OpenAI's.

        Texts of a `client` stay apart from those of others. Raises UsageError and ModelError.
        """
        tools, prompt = request.offered_tools, self._prompt(request)
        grammar = grammar_of_chat(request, prompt.template)
        prompt, wrap = self._with_reasoning(request, prompt, grammar is not None)
        tokens = _Prompt(array("i", prompt.tokens), "messages", shown=prompt.hidden_marks)
        keeps = bool(tools) or not request.stream  # text that may be a call is held back
        kept_bytes = self._kept_bytes(request, [tokens]) if keeps else 0
        functions = [tool["function"] for tool in tools or ()]
        schemas = {function["name"]: function.get("parameters") for function in functions}
        writer = partial(MessageWriter, prompt, schemas)
        sources = self._sources(request, [tokens], client, grammar, wrap)
        reply = reply or ChatReply(self, request)
        return self._completion(request, sources, reply, grammar, kept_bytes, writer)

    def _prompt(self, request: ChatRequest) -> ChatPrompt:
        try:
            with _about("messages"):
                return self._session.chat_prompt(
                    request.messages, request.offered_tools, request.template_variables
                )
        except ModelError as error:  # no template, or one that refuses these messages
            raise RequestError(str(error), "messages") from error

    def _with_reasoning(
        self, request: ChatRequest, prompt: ChatPrompt, has_grammar: bool
    ) -> tuple[ChatPrompt, Wrap | None]:
        """The prompt, and what changes the constraint of its answer, by the limits of reasoning."""
        budget = request.reasoning_budget
        budget = self.reasoning_budget if budget is None else budget
        if budget == 0 and prompt.marks is not None and prompt.continued is None:
            told = self._without_reasoning(request, prompt)
            return told, None if has_grammar else self._reasoned.limit(told, 0)
        if has_grammar and prompt.closing:
            most = self._session.most_tokens(len(prompt.tokens), request.limit)
            if wrap := self._reasoned.wrap(prompt, most, budget):
                return prompt, wrap
            return self._without_reasoning(request, prompt), None
        if has_grammar or budget is None:
            return prompt, None
        return prompt, self._reasoned.limit(prompt, budget)

    def _without_reasoning(self, request: ChatRequest, prompt: ChatPrompt) -> ChatPrompt:
        """The prompt of a conversation whose answer begins at once, in the template's own way if
        it has one."""
        variables = {"enable_thinking": False} | request.template_variables
        with suppress(ModelError):
            told = self._session.chat_prompt(request.messages, request.offered_tools, variables)
            if not told.closing:
                return told
        return prompt.closed()

    def text(
        self, request: CompletionRequest, reply: Reply | None = None, client: str = ""
    ) -> Completion:
        """Start the completion of prompts. Raises UsageError."""
        is_one = len(request.prompt) == 1
        prompts = [
            self._encoded(one, "prompt" if is_one else f"prompt.{place}", request)
            for place, one in enumerate(request.prompt)
        ]
        grammar = grammar_of(request.response_format)
        kept_bytes = 0 if request.stream else self._kept_bytes(request, prompts)
        sources = self._sources(request, prompts, client, grammar)
        reply = reply or TextReply(self, request)
        return self._completion(request, sources, reply, grammar, kept_bytes)

    def _encoded(
        self, prompt: str | Sequence[int], param: str, request: CompletionRequest
    ) -> _Prompt:
        if not isinstance(prompt, str):
            check_tokens(prompt, self._session.target.n_vocab, param)
            return _Prompt(array("i", prompt), param)
        with _about(param):
            if request.suffix:
                tokens = self.filling.prompt(prompt, request.suffix, param="suffix")
            else:
                tokens = self._session.encode(prompt)
        return _Prompt(array("i", tokens), param)

    def _sources(
        self,
        request: CommonRequest,
        prompts: Sequence[_Prompt],
        client: str,
        grammar: Grammar | None,
        wrap: Wrap | None = None,
    ) -> list[ChoiceSource]:
        """Generations in the order of their choices.

        `wrap` changes their constraints. All prompts are checked first. Raises UsageError.
        """
        sampling = self.sampling_of(request)
        shared = TextRequest(
            prompt_tokens=(),
            max_tokens=self.limit_of(request),
            stop=tuple(request.stop or ()),
            n_logprobs=request.n_logprobs,
            runs_ahead=self.writes_ahead or not request.stream,
            client=client,
        )

        follows = bool(request.stream and request.return_progress)

        def start(prompt: _Prompt, copy: int, grammar: Grammar | None) -> Tokens:
            constraint = None if grammar is None else self._session.constraint(grammar)
            seed = (sampling.seed + copy) % (1 << 64)
            text = replace(
                shared,
                prompt_tokens=tuple(prompt.tokens),
                sampling=sampling.model_copy(update={"seed": seed}),
                yields_progress=follows and copy == 0,
                constraint=wrap(constraint) if wrap else constraint,
                notes=() if grammar is None else grammar.notes,
                shown=prompt.shown,
            )
            with _about(prompt.param):
                return self._session.submit(text)

        sources: list[ChoiceSource] = []
        for place, prompt in enumerate(prompts):
            if len(prompt.tokens) > (most := self.max_prompt_tokens or len(prompt.tokens)):
                with _about(prompt.param):
                    raise ContextOverflow(most, len(prompt.tokens))
            if place:  # the first prompt is checked when its generation starts
                start(prompt, 0, None).close()
            for copy in range(request.copies):
                begin, index = partial(start, prompt, copy, grammar), len(sources)
                sources.append(ChoiceSource(begin, index, copy == 0, len(prompt.tokens)))
        return sources

    def limit_of(self, request: CommonRequest) -> int | None:
        """Most tokens of each text; None: as many as fit into the context."""
        given = [limit for limit in (request.limit, self.max_tokens) if limit is not None]
        return min(given, default=None)

    def sampling_of(self, request: CommonRequest) -> SamplingParams:
        """The settings of a request's texts, with a seed."""
        fields = {"seed": secrets.randbits(32)} | self.sampling | request.sampling_fields()
        if request.ignore_eos:
            forbidden = dict.fromkeys(self._session.eog_tokens, -math.inf)
            fields["logit_bias"] = dict(fields.get("logit_bias", {})) | forbidden
        return SamplingParams(**fields)

    def _kept_bytes(self, request: CommonRequest, prompts: Sequence[_Prompt]) -> int:
        """Memory of a whole response. Raises RequestError if it may become too large."""
        n_others, limit = request.n_logprobs, self.limit_of(request)
        copies = 1 if request.stream else request.copies
        if copies * len(prompts) == 1 and n_others is None:
            return 0
        n_tokens = copies * sum(self._session.most_tokens(len(p.tokens), limit) for p in prompts)
        if self.limits_answers and n_others is not None:
            most = request_limits.max_answer_tokens(n_others)
            if n_tokens > most:
                raise RequestError(
                    f"an answer of {n_tokens:,} tokens with {n_others} log probabilities beside "
                    f"each token's own is too large: ask for at most {most:,} tokens, or for fewer",
                    "logprobs",
                )
        return request_limits.answer_bytes(n_tokens, n_others)

    def _completion(
        self,
        request: CommonRequest,
        sources: Sequence[ChoiceSource],
        reply: Reply,
        grammar: Grammar | None,
        kept_bytes: int,
        new_writer: Callable[[], MessageWriter] = MessageWriter,
    ) -> Completion:
        unchecked = () if grammar is None else grammar.unchecked_formats
        # buffered tokens with log probabilities would take much memory
        is_one = grammar is not None or (request.stream and request.n_logprobs is not None)
        return Completion(
            self,
            sources,
            reply,
            new_writer,
            (lambda: 1) if is_one else self.n_at_once,
            kept_bytes + (GRAMMAR_BYTES if grammar is not None else 0),
            {"unchecked_formats": [*unchecked]} if unchecked else {},
        )


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Name the field of the request in an error about a prompt that is too long."""
    try:
        yield
    except ContextOverflow as error:
        error.param = param
        raise
