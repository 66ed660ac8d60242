"""Answers in the format of Anthropic's `/v1/messages`: whole ones, and events in their order."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from edgespec.completions.answers import Answer, Usage
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Told
from edgespec.completions.protocols.dialect import Asked, Dialect, Event, ToldParts
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.refusals import Refusal
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    503: "overloaded_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def messages_dialect(completions: Completions) -> Dialect:
    """`/v1/messages`."""

    def read(content: object) -> Asked:
        request = MessagesRequest.parse(content)
        chat = request.chat_request()
        reply = MessagesReply(completions.model)
        return Asked(request.stream, partial(completions.chat, chat), reply)

    return read


def messages_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error."""
    error: Answer = {"type": _KINDS.get(refusal.status, "api_error"), "message": str(refusal)}
    return {"type": "error", "error": refusal.figures | error, "request_id": request_id}


class MessagesReply:
    """Formats the answer to one request."""

    def __init__(
        self, model: str, new_id: Callable[[], str] = lambda: secrets.token_hex(12)
    ) -> None:
        self._model = model
        self._new_id = new_id
        self._has_begun = False

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        content = [_block(part) for part in completion.parts]
        return self._message(content, _usage(completion.usage)) | _stop_reason(completion)

    def stream(self, completion: Completion) -> ToldParts:
        return ToldParts(completion)

    def chunk(self, told: Told, completion: Completion) -> Iterator[Event]:
        yield from self._opening(completion)
        if told.change is not None:
            yield from _events_of(told.change)

    def end(self, completion: Completion) -> Iterator[Event]:
        yield from self._opening(completion)
        usage = _usage(completion.usage)
        yield _event("message_delta", delta=_stop_reason(completion), usage=usage)
        yield _event("message_stop")

    def failed(self, refusal: Refusal, request_id: str) -> Iterator[Event]:
        yield Event(messages_error(refusal, request_id), "error")

    def _opening(self, completion: Completion) -> Iterator[Event]:
        if not self._has_begun:
            self._has_begun = True
            message = self._message([], _usage(Usage(prompt_tokens=completion.n_prompt_tokens)))
            yield _event("message_start", message=message)

    def _message(self, content: list[Answer], usage: Answer) -> Answer:
        return {
            "id": f"msg_{self._new_id()}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }


def _event(kind: str, **fields: Any) -> Event:
    return Event({"type": kind, **fields}, kind)


def _events_of(change: Change) -> Iterator[Event]:
    part = change.part
    if change.kind == "ends":
        yield _event("content_block_stop", index=part.index)
        return
    if change.kind == "begins":
        block = _block(AnswerPart(part.kind, part.index, "", part.call_id, part.name))
        yield _event("content_block_start", index=part.index, content_block=block)
    if not change.text:
        return
    match part.kind:
        case "reasoning":
            delta = {"type": "thinking_delta", "thinking": change.text}
        case "text":
            delta = {"type": "text_delta", "text": change.text}
        case "call":
            delta = {"type": "input_json_delta", "partial_json": change.text}
    yield _event("content_block_delta", index=part.index, delta=delta)


def _block(part: AnswerPart) -> Answer:
    match part.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case "text":
            return {"type": "text", "text": part.text, "citations": None}
        case "call":
            arguments = _arguments(part.text)
            named = {"id": part.call_id, "name": part.name, "input": arguments}
            return {"type": "tool_use", **named, "caller": {"type": "direct"}}


def _arguments(text: str) -> Any:
    """The arguments as an object; of a call that was cut off, none."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _stop_reason(completion: Completion) -> Answer:
    reason, stopped_by = completion.finish_reason, completion.result.stopped_by
    if stopped_by is not None and reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": _REASONS.get(reason, "end_turn"), "stop_sequence": None}


def _usage(usage: Usage) -> Answer:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": None,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }
