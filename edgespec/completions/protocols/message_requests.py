"""Requests to Anthropic's `/v1/messages`, translated to chat requests.

What cannot be had is refused. Knows no session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field

from edgespec.chat.messages import text_of
from edgespec.completions.protocols.request_parts import (
    ParsedRequest,
    RequestError,
    RequestPart,
    call_of,
    reading,
    string,
    told,
)
from edgespec.completions.requests import MAX_STOPS, ChatRequest, callable_tools
from edgespec.settings.config import INT32_MAX

_BILLING = re.compile(r"\Ax-anthropic-billing-header:.*\n*")
"""The line that Claude Code puts first: a hash in it would let nothing that was read be reused."""


class Thinking(RequestPart):
    """Settings of the model's reasoning; the model's own if there are none."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)


class ToolChoice(RequestPart):
    """The tool to call: any, none, a named one, or as the model likes."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(RequestPart):
    """A format of the text: JSON by a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputSettings(RequestPart):
    """Settings of the answer; `effort` is a variable of the chat template."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(ParsedRequest):
    """A request to `/v1/messages/count_tokens`."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputSettings = OutputSettings()
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = Field(default=None, max_length=0)

    @classmethod
    def parse(cls, content: object) -> Self:
        """The request in decoded JSON. Raises RequestError."""
        if isinstance(content, Mapping) and content.get("thread") is not None:
            details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            raise RequestError(
                "thread: this server keeps no conversations: send all messages, without thread",
                "thread",
                figures={"details": details},
            )
        return super().parse(content)

    def chat_request(self) -> ChatRequest:
        """The chat request. Raises RequestError."""
        return ChatRequest.parse(self._chat_fields())

    def _chat_fields(self) -> dict[str, Any]:
        tools = [_tool(tool, at) for at, tool in callable_tools(self.tools or (), None, "custom")]
        output, thinking, choice = self.output_config, self.thinking, self.tool_choice
        reasoning: dict[str, Any] = {"effort": output.effort}
        if thinking is not None:
            reasoning["enabled"] = thinking.type != "disabled"
            reasoning["max_tokens"] = thinking.budget_tokens
        form = self.output_format or output.format
        schema = form and {"type": "json_schema", "json_schema": {"schema": form.schema_}}
        return {
            "model": self.model,
            "messages": self._messages(),
            "tools": tools or None,
            "tool_choice": choice and _choice(choice),
            "parallel_tool_calls": choice and not choice.disable_parallel_tool_use,
            "response_format": schema,
            "reasoning": reasoning,
        }

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.system:
            with reading("system", "system"):
                blocks = [self.system] if isinstance(self.system, str) else self.system
                texts = [text_of(one if isinstance(one, str) else [one]) for one in blocks]
                told = "\n\n".join(filter(None, (_BILLING.sub("", text) for text in texts)))
            messages.append({"role": "system", "content": told})
        for place, message in enumerate(self.messages):
            with reading(f"messages.{place}", "messages"):
                _add(messages, message)
        return messages


class MessagesRequest(CountRequest):
    """A request to `/v1/messages`."""

    max_tokens: int = Field(ge=1, le=INT32_MAX)
    stop_sequences: list[str] | None = Field(default=None, max_length=MAX_STOPS)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=INT32_MAX)
    top_p: float | None = Field(default=None, gt=0, le=1)
    container: None = None

    def _chat_fields(self) -> dict[str, Any]:
        names = ("max_tokens", "stream", "temperature", "top_k", "top_p")
        stop = [text for text in self.stop_sequences or () if text]
        own = {name: getattr(self, name) for name in names} | {"stop": stop or None}
        return super()._chat_fields() | own


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    with reading(where, "tools"):
        schema = dict(tool["input_schema"])
        function = {"name": string(tool["name"]), "parameters": schema}
        if tool.get("description"):
            function["description"] = string(tool["description"])
        return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return "required" if choice.type == "any" else choice.type


def _add(messages: list[dict[str, Any]], turn: Mapping[str, Any]) -> None:
    """Add a turn; results of tools are messages of their own, as in chat requests."""
    role, content = turn.get("role"), turn["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    match role:
        case "assistant":
            messages.append(_assistant(blocks))
        case "system":
            messages.append({"role": "system", "content": text_of(content)})
        case "user":
            for block in blocks:
                _add_block(messages, block)
        case _:
            raise ValueError("role must be user or assistant")


def _add_block(messages: list[dict[str, Any]], block: Mapping[str, Any]) -> None:
    if block.get("type") == "tool_result":
        text = text_of(block.get("content") or "", is_result=True)
        called = string(block["tool_use_id"])
        messages.append({"role": "tool", "tool_call_id": called, "content": text})
    elif messages and messages[-1]["role"] == "user":  # turns alternate
        messages[-1]["content"] += "\n\n" + text_of([block])
    else:
        messages.append({"role": "user", "content": text_of([block])})


def _assistant(blocks: list[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for block in blocks:
        match block.get("type"):
            case "thinking":
                text = message.get("reasoning_content", "") + string(block["thinking"])
                message["reasoning_content"] = text
            case "tool_use":
                arguments = json.dumps(dict(block["input"]), ensure_ascii=False)
                call = call_of(block["id"], block["name"], arguments)
                message.setdefault("tool_calls", []).append(call)
            case "redacted_thinking":
                pass
            case str(kind) if kind.endswith(("_tool_use", "_tool_result")):
                message["content"] += told(block)
            case _:
                message["content"] += text_of([block])
    return message
