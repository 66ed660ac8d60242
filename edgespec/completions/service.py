"""Starts requests in OpenAI's shape on a session.

Knows what a request's fields mean to us; the text is the session's business.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from edgespec.chat.messages import Message
from edgespec.chat.prompts import ChatPrompt
from edgespec.completions.answers import Envelope
from edgespec.completions.completion import ChatCompletion, TextCompletion, Tokens
from edgespec.completions.requests import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    RequestError,
    ResponseFormat,
)
from edgespec.completions.tool_calls import call_grammar, knows_calls
from edgespec.completions.writing import MessageWriter
from edgespec.errors import ModelError
from edgespec.grammar.specification import (
    Grammar,
    json_schema,
    lark_grammar,
    regular_expression,
)
from edgespec.ports import Progress
from edgespec.settings.config import SamplingParams
from edgespec.values import ModelInfo


class Generates(Protocol):
    """What is needed of a session."""

    @property
    def target(self) -> ModelInfo: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    def chat_prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> ChatPrompt: ...

    def encode(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        progress: Progress | None = None,
        grammar: Grammar | None = None,
        logprobs: int | None = None,
        *,
        shown: Mapping[int, str] | None = None,
    ) -> Tokens: ...


class Completions:
    """Answers under the name of one model."""

    def __init__(
        self,
        session: Generates,
        model: str | None = None,
        most_prompt_tokens: int | None = None,
        clock: Callable[[], float] = time.time,
        sampling: Mapping[str, Any] | None = None,
        most_logged_tokens: Callable[[int], int] | None = None,
    ) -> None:
        """`sampling` is what a request leaves open, by the names of `SamplingParams`.
        `most_logged_tokens` says how many tokens an answer may have that is kept whole, with so
        many log probabilities beside each token's own; without it there is no limit."""
        self._session = session
        self.model = model or session.target.name
        self._most_prompt_tokens = most_prompt_tokens
        self._clock = clock
        self.sampling = dict(sampling or {})
        self._most_logged_tokens = most_logged_tokens

    def chat(self, request: ChatRequest, progress: Progress | None = None) -> ChatCompletion:
        """The answer to a conversation. Raises UsageError and ModelError before it begins."""
        tools = request.offered_tools
        try:
            prompt = self._session.chat_prompt(
                request.messages, tools, **request.template_variables
            )
        except ModelError as error:  # no template, or one that refuses these messages
            raise RequestError(str(error), "messages") from error
        grammar = _grammar_of_chat(request, prompt)
        if tools or not request.stream:  # what may be a call is held back
            self._check_logprobs(request.n_logprobs, request.limit, len(prompt.tokens))
        tokens = self._start(
            request,
            prompt.tokens,
            request.limit,
            request.n_logprobs,
            progress,
            "messages",
            grammar,
            prompt.hidden_marks,
        )
        return ChatCompletion(
            tokens,
            self._envelope("chat.completion", "chatcmpl"),
            self._session.piece,
            MessageWriter(prompt, bool(tools)),
            request.wants_usage,
        )

    def text(self, request: CompletionRequest, progress: Progress | None = None) -> TextCompletion:
        """What follows a prompt. Raises UsageError before it begins."""
        prompt = request.prompt
        if isinstance(prompt, str):
            encoded, echo = self._session.encode(prompt), prompt
        else:
            encoded = prompt
            _check_tokens(prompt, self._session.target.n_vocab)
            echo = b"".join(map(self._session.piece, prompt)).decode(errors="replace")
        grammar = grammar_of(request.response_format)
        if not request.stream:
            self._check_logprobs(request.logprobs, request.limit, len(encoded))
        tokens = self._start(
            request, encoded, request.limit, request.logprobs, progress, "prompt", grammar
        )
        return TextCompletion(
            tokens,
            self._envelope("text_completion", "cmpl"),
            self._session.piece,
            echo if request.echo else "",
            request.wants_usage,
        )

    def _start(
        self,
        request: CommonRequest,
        prompt: Sequence[int],
        limit: int | None,
        n_logprobs: int | None,
        progress: Progress | None,
        param: str,
        grammar: Grammar | None,
        shown: Mapping[int, str] | None = None,
    ) -> Tokens:
        most = self._most_prompt_tokens
        if most is not None and len(prompt) > most:
            raise RequestError(
                f"{param}: {len(prompt):,} tokens, at most {most:,} are taken", param
            )
        return self._session.stream(
            prompt,
            self._sampling_of(request),
            limit,
            tuple(request.stop or ()),
            progress,
            grammar,
            n_logprobs,
            shown=shown,
        )

    def _sampling_of(self, request: CommonRequest) -> SamplingParams:
        fields = {"seed": secrets.randbits(32)} | self.sampling | request.sampling_fields()
        if request.ignore_eos:
            forbidden = dict.fromkeys(self._session.eog_tokens, -math.inf)
            fields["logit_bias"] = dict(fields.get("logit_bias", {})) | forbidden
        return SamplingParams(**fields)

    def _check_logprobs(self, n_others: int | None, limit: int | None, n_prompt: int) -> None:
        """Raise RequestError where an answer that is kept whole may become too large."""
        if self._most_logged_tokens is None or n_others is None:
            return
        room = max(0, self._session.target.n_ctx - n_prompt + 1)
        n_tokens = room if limit is None else min(limit, room)
        most = self._most_logged_tokens(n_others)
        if n_tokens > most:
            raise RequestError(
                f"an answer of {n_tokens:,} tokens with {n_others} log probabilities beside each "
                f"token's own is too large: ask for at most {most:,} tokens, or for fewer",
                "logprobs",
            )

    def _envelope(self, kind: Any, prefix: str) -> Envelope:
        identity = f"{prefix}-{secrets.token_hex(12)}"
        return Envelope(kind, identity, int(self._clock()), self.model)


def _check_tokens(prompt: Sequence[int], n_vocab: int) -> None:
    """Raise RequestError for numbers that are no tokens, before any is decoded."""
    for place, token in enumerate(prompt):
        if not 0 <= token < n_vocab:
            raise RequestError(
                f"prompt.{place}: token {token} is unknown: the vocabulary has 0 to {n_vocab - 1}",
                "prompt",
            )


def _grammar_of_chat(request: ChatRequest, prompt: ChatPrompt) -> Grammar | None:
    """What a response format, or the choice of tools, asks of the answer."""
    required = request.required_tools
    grammar = grammar_of(request.response_format)
    if required is None:
        return grammar
    if grammar is not None:
        raise RequestError(
            "tool_choice asks for a call and response_format for something else: leave one of them "
            "out",
            "tool_choice",
        )
    if not knows_calls(prompt.template):
        raise RequestError(
            "this model's chat template has no form of calls that can be asked for: leave "
            "tool_choice at auto",
            "tool_choice",
        )
    return call_grammar(required)


def grammar_of(wanted: ResponseFormat | None) -> Grammar | None:
    """What a response format asks of the answer. Raises RequestError and GrammarError."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return json_schema({"type": "object"} if wanted.schema_ is None else wanted.schema_)
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise RequestError("response_format.json_schema is missing", "response_format")
        return json_schema(wanted.json_schema.schema_)
    name, text = (
        ("grammar", wanted.grammar) if wanted.type == "grammar" else ("pattern", wanted.pattern)
    )
    if not text:
        raise RequestError(f"response_format.{name} is missing", "response_format")
    return lark_grammar(text) if wanted.type == "grammar" else regular_expression(text)
