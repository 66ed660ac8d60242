"""Answers in the format of Anthropic's `/v1/messages`: whole ones, and events in their order."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from edgespec.completions.answers import Answer, Usage
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Step
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.refusals import Refusal
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"} | {
    "context": "model_context_window_exceeded"
}
_NULLS = {
    "message": ("container", "stop_details"),
    "usage": ("cache_creation", "inference_geo", "server_tool_use"),
}
"""Fields that the schema requires, of features that are not here."""
_SIGNATURE = "unsigned"
"""Signature of reasoning, which clients drop from later turns if there is none."""


def messages_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error."""
    usual = "invalid_request_error" if refusal.status < 500 else "api_error"
    error: Answer = {"type": _KINDS.get(refusal.status, usual), "message": str(refusal)}
    return {"type": "error", "error": refusal.figures | error, "request_id": request_id}


class MessagesReply(Reply):
    """Formats the answer to one request."""

    def __init__(self, completions: Completions, content: object) -> None:
        """Read a request in decoded JSON. Raises RequestError."""
        request = MessagesRequest.parse(content).chat_request()
        super().__init__(request.stream, partial(completions.chat, request))
        self._model = completions.model

    def waiting(self) -> Iterable[Answer]:
        return ({"type": "ping"},)

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        return self._message(completion.usage) | {
            "content": [_block(part) for part in completion.parts],
            **_stop_reason(completion),
        }

    def step(self, step: Step, completion: Completion) -> Iterator[Answer]:
        if step.begins:
            usage = Usage(prompt_tokens=completion.source.n_prompt_tokens)
            yield {"type": "message_start", "message": self._message(usage)}
        if step.change is not None:
            yield from _events_of(step.change)

    def end(self, completion: Completion) -> Iterator[Answer]:
        reason, usage = _stop_reason(completion), _usage(completion.usage)
        yield {"type": "message_delta", "delta": reason, "usage": usage}
        yield {"type": "message_stop"}

    def _message(self, usage: Usage) -> Answer:
        return {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage) | dict.fromkeys(_NULLS["usage"]),
            **dict.fromkeys(_NULLS["message"]),
        }


def _events_of(change: Change) -> Iterator[Answer]:
    part = change.part
    place = {"index": part.index}
    if change.kind == "begins":
        begun = _block(replace(part, text=""), "")
        yield {"type": "content_block_start", **place, "content_block": begun}
    if change.kind == "ends":
        if part.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": _SIGNATURE}
            yield {"type": "content_block_delta", **place, "delta": delta}
        yield {"type": "content_block_stop", **place}
    elif change.text:
        kind, field = _DELTAS[part.kind]
        delta = {"type": kind, field: change.text}
        yield {"type": "content_block_delta", **place, "delta": delta}


def _block(part: AnswerPart, signature: str = _SIGNATURE) -> Answer:
    match part.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": signature}
        case "text":
            return {"type": "text", "text": part.text, "citations": None}
        case "call":
            arguments = _arguments(part.text)
            named = {"id": part.call_id, "name": part.name, "input": arguments}
            return {"type": "tool_use", **named, "caller": {"type": "direct"}}


def _arguments(text: str) -> Any:
    """The arguments as an object; of a call that was cut off, none."""
    with suppress(ValueError):
        if isinstance(found := json.loads(text or "{}"), dict):
            return found
    return {}


def _stop_reason(completion: Completion) -> Answer:
    reason, stopped_by = completion.finish_reason, completion.result.stopped_by
    if stopped_by is not None and reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    if completion.result.finish_reason == "context":
        reason = "context"
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _usage(usage: Usage) -> Answer:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
