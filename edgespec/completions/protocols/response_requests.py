"""Requests to OpenAI's `/v1/responses`, translated to chat requests.

What cannot be had is refused. Knows no session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from edgespec.chat.messages import text_of
from edgespec.completions.protocols.request_parts import RequestPart, call_of, reading, string, told
from edgespec.completions.requests import (
    ChatRequest,
    JsonSchema,
    Reasoning,
    SamplingRequest,
    ToolChoice,
    callable_tools,
)
from edgespec.settings.config import INT32_MAX

_PASSED = {"model", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning"}
"""Fields that a chat request has, too, besides those of sampling."""


class TextFormat(JsonSchema):
    """Format of the text: free, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextSettings(RequestPart):
    format: TextFormat = TextFormat()


class ResponsesRequest(SamplingRequest):
    """A request to `/v1/responses`."""

    model: str
    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    text: TextSettings = TextSettings()
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: Literal[0] = 0
    store: bool = True
    conversation: None = None
    prompt: None = None
    background: Literal[False] = False
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None

    @property
    def all_items(self) -> list[Any]:
        """The items of `input`, behind a reference to the earlier response."""
        earlier = {"type": "item_reference", "id": self.previous_response_id}
        new = self.input
        if isinstance(new, str):
            new = [{"role": "user", "content": new}]
        return [earlier, *new] if self.previous_response_id else new

    def chat_request(self, items: Sequence[Any]) -> ChatRequest:
        """The chat request, whose messages are `items` without references. Raises RequestError."""
        reader = _Items()
        if self.instructions:
            reader.messages.append({"role": "system", "content": self.instructions})
        n_earlier = len(items) - (1 if isinstance(self.input, str) else len(self.input))
        for place, item in enumerate(items):
            with reading(f"input.{max(0, place - n_earlier)}", "input"):
                reader.read(item)
        tools = [_tool(tool, at) for at, tool in callable_tools(self.tools or (), "function")]
        form = self.text.format
        schema = None if form.schema_ is None else {"name": form.name, "schema": form.schema_}
        passed = {*SamplingRequest.model_fields, *_PASSED}
        fields = self.model_dump(include=passed, exclude_none=True) | {
            "messages": reader.messages,
            "max_completion_tokens": self.max_output_tokens,
            "response_format": {"type": form.type, "json_schema": schema},
            "tools": tools or None,
        }
        return ChatRequest.parse(fields)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    with reading(where, "tools"):
        string(tool["name"])
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name)}}


class _Items:
    """Messages read from input items so far."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""

    def read(self, item: Any) -> None:
        match item.get("type"):
            case None | "message":
                self._add(string(item["role"]), text_of(item.get("content")))
            case "function_call":
                call = call_of(item["call_id"], item["name"], item["arguments"])
                last = self.messages[-1] if self.messages else {}
                if last.get("role") != "assistant" or self._reasoning:
                    self._add("assistant", "")
                self.messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                self._add("tool", text_of(item["output"], is_result=True))
                self.messages[-1]["tool_call_id"] = string(item["call_id"])
            case "reasoning":
                self._reasoning += text_of(item.get("content") or item.get("summary") or "")
            case kind:  # calls of tools that other servers have, and what they returned
                self._add("user" if string(kind).endswith("_output") else "assistant", told(item))

    def _add(self, role: str, content: str) -> None:
        message = {"role": role, "content": content}
        last = self.messages[-1] if self.messages else {}
        if role == "assistant" and not self._reasoning and last.get("tool_calls"):
            last["content"] += content  # text behind a call, whose result follows
            return
        if self._reasoning and role == "assistant":
            message["reasoning_content"] = self._reasoning
        if role != "tool":
            self._reasoning = ""  # of an answer that was interrupted
        self.messages.append(message)
