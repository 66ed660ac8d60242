"""Validated requests in OpenAI's formats.

Fields that do not change the text (`user`, `metadata`, ...) are accepted and ignored. Knows no
session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from edgespec.completions import llama_fields
from edgespec.completions.protocols.request_parts import (
    ParsedRequest,
    RequestError,
    RequestPart,
    leave_out,
    reading,
    string,
)
from edgespec.ports import unknown_token
from edgespec.settings.config import INT32_MAX, SamplingParams

MAX_CHOICES = 128
"""Most texts of one request: prompts times copies."""
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
_TEMPLATE_ARGUMENTS = frozenset(
    {"messages", "tools", "self", "add_generation_prompt", "continue_final_message"}
)
"""Template variables that requests cannot set by chat_template_kwargs."""

Prompts = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""One prompt as text or tokens, or several prompts."""


def _as_stops(value: object) -> object:
    """A list of stop strings; the empty string alone is none, as some clients send it."""
    if isinstance(value, str):
        return [value] if value else []
    return list(value) if isinstance(value, tuple) else value


class StreamOptions(RequestPart):
    include_usage: bool = False


class JsonSchema(RequestPart):
    """The `json_schema` of a response format."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] | None = Field(alias="schema", default=None)
    strict: bool | None = None


class ResponseFormat(RequestPart):
    """Format of the text: free, any JSON object, JSON by a schema, or by a grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex"] = "text"
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(alias="schema", default=None)
    """Schema for the type `json_object`, as in llama.cpp."""
    grammar: str | None = None
    """Grammar for the type `grammar`: Lark, or llama.cpp's GBNF."""
    pattern: str | None = None
    """Regular expression for the type `regex`."""


class Reasoning(RequestPart):
    """Settings of a model's reasoning."""

    effort: str | None = None
    """Passed to the chat template as a variable."""
    max_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)
    """Most tokens of reasoning; 0: the answer begins at once."""
    enabled: bool | None = None
    """Passed to the chat template as `enable_thinking`."""
    summary: str | None = None


class NamedFunction(RequestPart):
    """A function, as `tool_choice` of Responses names it."""

    type: Literal["function"] = "function"
    name: str


class NamedTool(RequestPart):
    """A function, as `tool_choice` of a chat names it."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(RequestPart):
    """The functions that may be called, or one of which must be."""

    type: Literal["allowed_tools"] = "allowed_tools"
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedFunction], Field(min_length=1)]


def _unwrapped(choice: Any) -> Any:
    """Allowed tools as Responses names them, which a chat has in a field of their type."""
    return choice.get("allowed_tools", choice) if isinstance(choice, dict) else choice


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | NamedFunction | AllowedTools | None,
    BeforeValidator(_unwrapped),
]


class SamplingRequest(ParsedRequest):
    """Fields of requests in OpenAI's protocols that sample a text; None means the default."""

    stream: bool = False
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=INT32_MAX)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repeat_last_n: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    logit_bias: dict[Annotated[int, Field(strict=False)], float] | None = None
    seed: int | None = Field(default=None, ge=0, lt=1 << 64)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None,
        BeforeValidator(_as_stops),
    ] = Field(default=None, max_length=MAX_STOPS)


class CommonRequest(SamplingRequest):
    """Fields common to chat and completion requests; None means the default."""

    model: str | None = None
    stream_options: StreamOptions = StreamOptions()
    return_progress: bool | None = None
    """llama.cpp's field: a stream tells how much of the prompt has been read."""
    return_origins: bool | None = None
    """Our own field: a stream tells of each token who had guessed it."""
    max_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)
    t_max_predict_ms: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    """llama.cpp's field: a text ends at its first line break after so many milliseconds."""
    ignore_eos: bool = False
    """llama.cpp's field: end-of-generation tokens are never sampled."""
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    response_format: ResponseFormat | None = None

    @classmethod
    def parse(cls, content: object) -> Self:
        """The request in decoded JSON, with llama.cpp's fields too. Raises RequestError."""
        if isinstance(content, Mapping):
            content = llama_fields.translated(content, "messages" in cls.model_fields)
        return super().parse(content)

    @classmethod
    def known_fields(cls) -> list[str]:
        return [*super().known_fields(), *llama_fields.KNOWN]

    @property
    def limit(self) -> int | None:
        """Most tokens of the answer."""
        return self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """Number of alternatives per token; None: no log probabilities. Raises RequestError."""
        raise NotImplementedError

    @property
    def copies(self) -> int:
        """Number of choices per prompt."""
        return self.n or 1

    def sampling_fields(self) -> dict[str, Any]:
        """The request's sampling settings, by fields of `SamplingParams`."""
        names = SamplingParams.model_fields
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def callable_tools(tools: Sequence[Mapping[str, Any]], *types: object) -> list[tuple[str, Any]]:
    """The tools of the `types` that can be called, and their places; others are left out."""
    found = []
    for place, tool in enumerate(tools):
        kind = tool.get("type")
        if kind in types:
            found.append((f"tools.{place}", tool))
        elif not leave_out(f"tools.{kind}"):
            raise RequestError(
                f"tools.{place} is of type {kind!r}: this server has no tools of its own, only "
                "functions can be called",
                "tools",
            )
    return found


def _named_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The functions among the tools, if each has a name. Raises RequestError."""
    found = callable_tools(tools, None, "function")
    for place, tool in found:
        where = f"{place}.function"
        with reading(where, where):
            function = tool.get("function") or {}
            if not string(function["name"]):
                raise KeyError("name")
            if not isinstance(function.get("parameters") or {}, Mapping):
                raise TypeError("parameters")
    return [tool for _, tool in found]


class ChatRequest(CommonRequest):
    """A request to `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[dict[str, Any]], AfterValidator(_named_tools)] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    """Passed to the chat template as a variable."""
    reasoning: Reasoning = Reasoning()
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    """vLLM's field: begin a new answer after the messages. Default: unless the last one is
    continued."""
    continue_final_message: bool | None = None
    """vLLM's field: continue the last message. Default: if it is the assistant's."""

    @property
    def limit(self) -> int | None:
        """Most tokens of the answer; the newer of the two fields wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def n_logprobs(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs:
                raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
            return None
        return self.top_logprobs or 0

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        choice = self.tool_choice
        if isinstance(choice, AllowedTools) and choice.mode == "auto":
            return self._named(choice)
        return None if choice == "none" else self.tools

    @property
    def required_tools(self) -> list[dict[str, Any]] | None:
        """Tools of which one must be called; None if no call is required. Raises RequestError."""
        choice = self.tool_choice
        if getattr(choice, "mode", choice) in (None, "none", "auto"):
            return None
        return self._named(choice)

    def _named(self, choice: ToolChoice) -> list[dict[str, Any]]:
        """The tools that a choice names, or all. Raises RequestError."""
        tools = {tool["function"]["name"]: tool for tool in self.tools or ()}
        if not tools:
            raise RequestError("tool_choice asks for a call, but tools is empty", "tool_choice")
        if choice is None or isinstance(choice, str):
            return [*tools.values()]
        chosen = choice.tools if isinstance(choice, AllowedTools) else [choice]
        names = [one.function.name if isinstance(one, NamedTool) else one.name for one in chosen]
        if (name := next((name for name in names if name not in tools), None)) is not None:
            raise RequestError(
                f"tool_choice names {name!r}; the tools are {', '.join(tools)}", "tool_choice"
            )
        return [tools[name] for name in dict.fromkeys(names)]

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables for the chat template. Raises RequestError for reserved names."""
        variables = dict(self.chat_template_kwargs or {})
        if reserved := variables.keys() & _TEMPLATE_ARGUMENTS:
            raise RequestError(
                f"chat_template_kwargs.{min(reserved)} is set by the server: leave it out",
                "chat_template_kwargs",
            )
        reasoning = self.reasoning
        effort = self.reasoning_effort or reasoning.effort
        for name, value in (
            ("add_generation_prompt", self.add_generation_prompt),
            ("continue_final_message", self.continue_final_message),
            ("reasoning_effort", "none" if reasoning.enabled is False else effort),
            ("enable_thinking", False if effort == "none" else reasoning.enabled),
        ):
            if value is not None:
                variables.setdefault(name, value)
        return variables

    @property
    def reasoning_budget(self) -> int | None:
        """Most tokens of reasoning; None: no limit of its own."""
        reasoning = self.reasoning
        if "none" in (self.reasoning_effort, reasoning.effort) or reasoning.enabled is False:
            return 0
        return reasoning.max_tokens


def _as_prompts(value: object) -> object:
    """The value as a list of prompts; a single prompt is text or a list of tokens."""
    is_list_of_prompts = isinstance(value, list) and value and isinstance(value[0], str | Sequence)
    return value if is_list_of_prompts else [value]


class CompletionRequest(CommonRequest):
    """A request to `/v1/completions`."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_as_prompts)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    suffix: str | None = None
    """Text behind the one that is written, for models that fill in the middle."""

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        n_choices = len(self.prompt) * self.copies
        if n_choices > MAX_CHOICES:
            raise RequestError(
                f"n: {self.copies} copies of {len(self.prompt)} prompts are {n_choices} texts, at "
                f"most {MAX_CHOICES} are written for one request",
                "n",
            )
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens of the answer; OpenAI's default for this endpoint is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs


def check_tokens(tokens: Sequence[int], n_vocab: int, param: str) -> None:
    """Raise RequestError for a token of the field `param` that is outside the vocabulary."""
    for place, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            raise RequestError(f"{param}.{place}: {unknown_token(token, n_vocab)}", param)
