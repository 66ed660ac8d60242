"""Requests to Anthropic's `/v1/messages`, translated to chat requests.

Fields without an effect on the text are accepted; others that cannot be had are refused. Knows no
session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from edgespec.completions.protocols.contents import (
    UNREAD,
    as_list,
    as_object,
    as_text,
    part_text,
    text_field,
)
from edgespec.completions.protocols.request_parts import RequestPart
from edgespec.completions.protocols.request_schemas import TURNS
from edgespec.completions.requests import (
    MAX_STOPS,
    ChatRequest,
    ParsedRequest,
    RequestError,
    callable_tools,
)
from edgespec.settings.config import INT32_MAX

_TEXT = ("text",)


class Thinking(RequestPart):
    """Settings of the model's reasoning; the model's own if there are none."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)
    display: str | None = None


class ToolChoice(RequestPart):
    """The tool to call: any, none, a named one, or as the model likes."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(RequestPart):
    """A format of the text: JSON by a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputSettings(RequestPart):
    """Settings of the answer."""

    effort: str | None = None
    """Passed to the chat template as a variable."""
    format: OutputFormat | None = None


class CountRequest(ParsedRequest):
    """A request to `/v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1), TURNS]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputSettings | None = None
    output_format: OutputFormat | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = Field(default=None, max_length=0)

    @classmethod
    def parse(cls, content: object) -> Self:
        """The request in decoded JSON. Raises RequestError."""
        if isinstance(content, Mapping) and content.get("thread") is not None:
            raise RequestError(
                "thread: this server keeps no conversations: send all messages, without thread",
                "thread",
                figures={
                    "details": {
                        "error_code": "thread_unsupported_request",
                        "unsupported": ["thread"],
                    }
                },
            )
        return super().parse(content)

    def chat_request(self) -> ChatRequest:
        """The chat request. Raises RequestError."""
        return ChatRequest.parse(self._chat_fields())

    def _chat_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "messages": self._messages()}
        tools = [_tool(tool, at) for at, tool in callable_tools(self.tools or (), None, "custom")]
        fields["tools"] = tools or None
        if self.tool_choice is not None:
            fields["tool_choice"] = _choice(self.tool_choice)
        output = self.output_config or OutputSettings()
        if (its := self.output_format or output.format) is not None:
            schema = {"schema": its.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        reasoning: dict[str, Any] = {"effort": output.effort}
        if (thinking := self.thinking) is not None:
            reasoning["enabled"] = thinking.type != "disabled"
            reasoning["max_tokens"] = thinking.budget_tokens
        fields["reasoning"] = {k: v for k, v in reasoning.items() if v is not None} or None
        return fields

    def _messages(self) -> list[dict[str, Any]]:
        reader = _Turns()
        if self.system:
            reader.system(self.system)
        for place, message in enumerate(self.messages):
            reader.read(message, f"messages.{place}")
        return reader.messages


class MessagesRequest(CountRequest):
    """A request to `/v1/messages`."""

    max_tokens: int = Field(ge=1, le=INT32_MAX)
    stop_sequences: list[str] | None = Field(default=None, max_length=MAX_STOPS)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=INT32_MAX)
    top_p: float | None = Field(default=None, gt=0, le=1)
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    container: None = None

    def _chat_fields(self) -> dict[str, Any]:
        names = ("max_tokens", "stream", "temperature", "top_k", "top_p")
        stop = [text for text in self.stop_sequences or () if text]
        own = {name: getattr(self, name) for name in names} | {"stop": stop or None}
        return super()._chat_fields() | own


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    name = text_field(tool, "name", where, "tools")
    schema = as_object(tool.get("input_schema"), f"{where}.input_schema", "tools")
    function = {"name": name, "parameters": dict(schema)}
    if tool.get("description"):
        function["description"] = text_field(tool, "description", where, "tools")
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    match choice.type:
        case "tool":
            return {"type": "function", "function": {"name": choice.name or ""}}
        case "any":
            return "required"
        case kind:
            return kind


class _Turns:
    """Messages in the format of chat requests, read so far."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def system(self, system: str | list[dict[str, Any]]) -> None:
        texts = (
            [system]
            if isinstance(system, str)
            else [
                part_text(block, f"system.{place}", "system", _TEXT)
                for place, block in enumerate(system)
            ]
        )
        self.messages.append({"role": "system", "content": "\n\n".join(texts)})

    def read(self, message: Mapping[str, Any], where: str) -> None:
        role, content = message.get("role"), message.get("content")
        blocks = (
            [{"type": "text", "text": content}]
            if isinstance(content, str)
            else as_list(content, f"{where}.content", "messages")
        )
        places = [
            (as_object(block, f"{where}.content.{n}", "messages"), f"{where}.content.{n}")
            for n, block in enumerate(blocks)
        ]
        match role:
            case "assistant":
                self._assistant(places)
            case "user":
                self._user(places)
            case "system":
                texts = [part_text(block, at, "messages", _TEXT) for block, at in places]
                self.messages.append({"role": "system", "content": "".join(texts)})
            case _:
                raise RequestError(f"{where}.role must be user or assistant", "messages")

    def _user(self, blocks: list[tuple[Mapping[str, Any], str]]) -> None:
        """Results of tools are messages of their own, as in chat requests."""
        texts: list[str] = []
        for block, where in blocks:
            if block.get("type") == "tool_result":
                self._say("user", texts)
                self.messages.append(_result(block, where))
            else:
                texts.append(_user_text(block, where))
        self._say("user", texts)

    def _assistant(self, blocks: list[tuple[Mapping[str, Any], str]]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for block, where in blocks:
            match block.get("type"):
                case "text":
                    message["content"] += text_field(block, "text", where, "messages")
                case "thinking":
                    text = text_field(block, "thinking", where, "messages")
                    message["reasoning_content"] = message.get("reasoning_content", "") + text
                case "redacted_thinking":
                    pass
                case "tool_use":
                    message.setdefault("tool_calls", []).append(_call(block, where))
                case kind:
                    raise RequestError(f"{where} is of type {kind!r}: {UNREAD}", "messages")
        self.messages.append(message)

    def _say(self, role: str, texts: list[str]) -> None:
        """Add texts to the last message, if it has the same role, since turns alternate."""
        if not texts:
            return
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == role:
            texts.insert(0, last["content"])
            self.messages.pop()
        self.messages.append({"role": role, "content": "\n\n".join(texts)})
        texts.clear()


def _user_text(block: Mapping[str, Any], where: str) -> str:
    if block.get("type") == "document":
        source = as_object(block.get("source"), f"{where}.source", "messages")
        if source.get("type") == "text":
            return text_field(source, "data", f"{where}.source", "messages")
    return part_text(block, where, "messages", _TEXT)


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    identity = text_field(block, "tool_use_id", where, "messages")
    content = block.get("content")
    where = f"{where}.content"
    text = "" if content is None else as_text(content, where, "messages", _TEXT, is_result=True)
    return {"role": "tool", "tool_call_id": identity, "content": text}


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = as_object(block.get("input"), f"{where}.input", "messages")
    function = {
        "name": text_field(block, "name", where, "messages"),
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }
    identity = text_field(block, "id", where, "messages")
    return {"id": identity, "type": "function", "function": function}
