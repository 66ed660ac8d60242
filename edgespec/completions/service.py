"""Starts requests in OpenAI's format on a session, whose fields it translates them to."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

from edgespec.chat.messages import Message
from edgespec.chat.prompts import ChatPrompt
from edgespec.completions import request_limits
from edgespec.completions.filling import FillingIn
from edgespec.completions.protocols.openai_replies import ChatReply, TextReply
from edgespec.completions.protocols.request_parts import RequestError, about
from edgespec.completions.request_grammars import call_grammar, grammar_of
from edgespec.completions.requests import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    check_tokens,
)
from edgespec.completions.running_request import ChoiceSource, Completion, Reply
from edgespec.completions.tokenizing import Tokenizes
from edgespec.completions.tool_calls import knows_calls
from edgespec.completions.writing import MessageWriter
from edgespec.errors import ContextOverflow, EdgespecError, ModelError, marked
from edgespec.grammar.after_reasoning import AfterReasoning, ReasoningEnd
from edgespec.grammar.specification import GRAMMAR_BYTES, Grammar
from edgespec.ports.text_request import Constraint, TextRequest, Tokens
from edgespec.settings.config import SamplingParams
from edgespec.values import GenerationResult, ModelInfo

MIN_ANSWER_TOKENS = 256
"""Tokens that are kept for an answer under a grammar; a fourth of the limit if that is more."""
MIN_REASONING_TOKENS = 64
"""Least tokens of reasoning that are worth their time before such an answer."""

Wrap = Callable[[Constraint | None], Constraint | None]
"""Returns a constraint that lets the model reason before the given one, if there is one, holds."""


class Generates(Protocol):
    """Protocol of the part of a session that the service uses."""

    @property
    def target(self) -> ModelInfo: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    @property
    def tokenizer(self) -> Tokenizes: ...

    def chat_prompt(
        self, messages: Sequence[Message], tools: Any = None, template: Any = None
    ) -> ChatPrompt: ...

    def encode(self, text: str) -> list[int]: ...

    def most_tokens(self, n_prompt: int, max_tokens: int | None = None) -> int: ...

    def piece(self, token: int) -> bytes: ...

    def constraint(self, grammar: Grammar) -> Constraint: ...

    def submit(self, request: TextRequest) -> Tokens: ...


@dataclass(eq=False)
class Completions:
    """Starts chat and completion requests for one model."""

    _session: Generates
    model: str = ""
    max_prompt_tokens: int | None = None
    clock: Callable[[], float] = time.time
    sampling: dict[str, Any] = field(default_factory=dict)
    """Defaults of requests, by fields of `SamplingParams`."""
    serves: bool = False
    """True: whole responses with log probabilities or several choices have a server's limits, and
    texts of streams do not wait for whoever takes their chunks."""
    on_result: Callable[[GenerationResult], None] = lambda _: None
    """Called with the result of each generation."""
    n_at_once: Callable[[], int] = lambda: 1
    """Number of generations of a request that may run in parallel."""
    max_tokens: int | None = None
    """Most tokens of a text, whatever a request asks for."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning, unless a request names another number."""
    check_open: Callable[[], None] = lambda: None
    """Raises SessionClosed once the session is being closed."""

    def __post_init__(self) -> None:
        self.model = self.model or self._session.target.name
        self._ends: dict[tuple[str, tuple[int, ...]], ReasoningEnd] = {}
        self.filling = FillingIn(self._session.encode)

    def piece_of(self, token: int) -> bytes:
        """The bytes of a token, those of control tokens included."""
        return self._session.tokenizer.piece(token)

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
        if (required := request.required_tools) is None:
            grammar = grammar_of(request.response_format)
        else:
            grammar = call_grammar(required, knows_calls(prompt.template))
        if tools and required is None and grammar and grammar.kind == "json schema":
            # a call may come first, else none ever would
            answer = json.loads(grammar.source)
            grammar = call_grammar(tools, knows_calls(prompt.template), answer)
        prompt, wrap = self._with_reasoning(request, prompt, grammar is not None)
        most_calls = 1 if request.parallel_tool_calls is False else None
        functions = [tool["function"] for tool in tools or ()]
        schemas = {function["name"]: function.get("parameters") for function in functions}
        return self._completion(
            request,
            reply or ChatReply(self, request),
            client,
            {"messages": prompt.tokens},
            grammar,
            wrap,
            partial(MessageWriter, prompt, schemas, most_calls),
            prompt.hidden_marks,
        )

    def _prompt(self, request: ChatRequest) -> ChatPrompt:
        try:
            with about("messages"):
                return self._session.chat_prompt(
                    request.messages, request.offered_tools, request.template_variables
                )
        except ModelError as error:  # no template, or one that refuses these messages
            raise RequestError(marked(error), "messages") from error

    def _with_reasoning(
        self, request: ChatRequest, prompt: ChatPrompt, has_grammar: bool
    ) -> tuple[ChatPrompt, Wrap | None]:
        """The prompt, and what changes the constraint of its answer, by the limits of reasoning."""
        budget = request.reasoning_budget
        budget = self.reasoning_budget if budget is None else budget
        if budget == 0 and prompt.marks is not None:
            told = self._without_reasoning(request, prompt)
            return told, None if has_grammar else self.wrap(told, 0, has_grammar=False)
        if has_grammar and prompt.opened:
            most = self._session.most_tokens(len(prompt.tokens), request.limit)
            n_free = most - max(MIN_ANSWER_TOKENS, most // 4)
            if n_free < MIN_REASONING_TOKENS:
                return self._without_reasoning(request, prompt), None
            budget = n_free if budget is None else min(budget, n_free)
        elif has_grammar or budget is None:
            return prompt, None
        return prompt, self.wrap(prompt, budget, has_grammar)

    def wrap(self, prompt: ChatPrompt, n_free: int, has_grammar: bool) -> Wrap | None:
        """For an answer with `n_free` tokens of reasoning; None if there are no marks of it."""
        marks, closing = prompt.marks, prompt.ending_tokens
        if marks is None or not closing:
            return None
        session, hidden = self._session, prompt.hidden_marks

        def shown(token: int) -> bytes:
            """The bytes of a token, also of a mark that is a control token."""
            return hidden[token].encode() if token in hidden else session.piece(token)

        new = ReasoningEnd(marks.end, closing, shown, session.target.n_vocab, session.eog_tokens)
        end = self._ends.setdefault((marks.end, closing), new)
        if has_grammar:  # here, since the thread that computes serves others, too
            _ = end.vocabulary
        begin = None if prompt.opened else marks.begin
        return lambda constraint: AfterReasoning(end, n_free, constraint, begin)

    def _without_reasoning(self, request: ChatRequest, prompt: ChatPrompt) -> ChatPrompt:
        """The prompt of a conversation whose answer begins at once, in the template's own way if
        it has one."""
        variables = {"enable_thinking": False} | request.template_variables
        with suppress(ModelError):
            told = self._session.chat_prompt(request.messages, request.offered_tools, variables)
            if not told.opened:
                return told
        return prompt.closed()

    def text(
        self, request: CompletionRequest, reply: Reply | None = None, client: str = ""
    ) -> Completion:
        """Start the completion of prompts. Raises UsageError."""
        prompts = {}
        for place, one in enumerate(request.prompt):
            param = "prompt" if len(request.prompt) == 1 else f"prompt.{place}"
            with about(param):
                if not isinstance(one, str):
                    check_tokens(one, self._session.target.n_vocab, param)
                    prompts[param] = one
                elif request.suffix:
                    prompts[param] = self.filling.prompt(one, request.suffix, param="suffix")
                else:
                    prompts[param] = self._session.encode(one)
        grammar = grammar_of(request.response_format)
        reply = reply or TextReply(self, request)
        return self._completion(request, reply, client, prompts, grammar)

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

    def _kept_bytes(self, request: CommonRequest, prompts: Collection[Sequence[int]]) -> int:
        """Memory of a whole response. Raises RequestError if it may become too large."""
        n_others, limit = request.n_logprobs, self.limit_of(request)
        copies = 1 if request.stream else request.copies
        if copies * len(prompts) == 1 and n_others is None:
            return 0
        n_tokens = copies * sum(self._session.most_tokens(len(one), limit) for one in prompts)
        if self.serves and n_others is not None:
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
        reply: Reply,
        client: str,
        prompts: Mapping[str, Sequence[int]],
        grammar: Grammar | None,
        wrap: Wrap | None = None,
        new_writer: Callable[[], MessageWriter] = MessageWriter,
        shown: Mapping[int, str] | None = None,
    ) -> Completion:
        """The answer to `prompts`, by the names of their fields; all are checked first.

        `wrap` changes the constraints of its texts. Raises UsageError.
        """
        sampling = self.sampling_of(request)
        shared = TextRequest(
            prompt_tokens=(),
            max_tokens=self.limit_of(request),
            stop=tuple(request.stop or ()),
            n_logprobs=request.n_logprobs,
            shown=shown or {},
            client=client,
            notes=() if grammar is None else grammar.notes,
            runs_ahead=self.serves or not request.stream,
        )

        def start(param: str, text: TextRequest, grammar: Grammar | None) -> Tokens:
            constraint = None if grammar is None else self._session.constraint(grammar)
            constraint = wrap(constraint) if wrap else constraint
            with about(param):
                return self._session.submit(replace(text, constraint=constraint))

        # text that may be a call is held back
        keeps = not request.stream or getattr(request, "offered_tools", None)
        kept_bytes = self._kept_bytes(request, prompts.values()) if keeps else 0
        sources: list[ChoiceSource] = []
        for param, tokens in prompts.items():
            if len(tokens) > (most := self.max_prompt_tokens or len(tokens)):
                with about(param):
                    raise ContextOverflow(most, len(tokens))
            text = replace(shared, prompt_tokens=tuple(tokens))
            if sources:  # the first prompt is checked when its generation starts
                start(param, text, None).close()
            for copy in range(request.copies):
                seed = (sampling.seed + copy) % (1 << 64)
                text = replace(
                    text,
                    sampling=sampling.model_copy(update={"seed": seed}),
                    yields_progress=bool(request.stream and request.return_progress and not copy),
                )
                begin, index = partial(start, param, text, grammar), len(sources)
                sources.append(ChoiceSource(begin, index, copy == 0, len(tokens)))
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
            limit_ms / 1000 if (limit_ms := request.t_max_predict_ms or 0) > 0 else math.inf,
        )
