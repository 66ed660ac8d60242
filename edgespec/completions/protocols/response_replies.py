"""Answers in the format of OpenAI's `/v1/responses`: whole ones, and events in their order.

Keeps the messages of answered responses in memory, for requests that go on from them.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.answer_parts import AnswerPart, Change, Step
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.refusals import Refusal
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions

_RENAMED = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}
"""Fields of this protocol by those of chat requests."""
_KINDS: Mapping[str, tuple[str, Answer, str, str]] = {
    "reasoning": (
        "rs",
        {"type": "reasoning", "summary": []},
        "response.reasoning_text",
        "text",
    ),
    "text": (
        "msg",
        {"type": "message", "role": "assistant"},
        "response.output_text",
        "text",
    ),
    "call": ("fc", {"type": "function_call"}, "response.function_call_arguments", "arguments"),
}
"""Prefix of an item's id, its fields, the events that tell its text, and the field of the text in
the last of them, by the kind of its part."""
_NULLS = ("max_tool_calls", "prompt_cache_key", "safety_identifier", "user")
"""Fields that an answer has without a value."""
_OF_TOOLS = ("name", "description", "parameters", "strict")
_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Settings that an answer repeats, and what they are by default."""


def responses_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error, which names fields as this protocol does."""
    error = refusal.content["error"]
    return {"error": error | {"param": _RENAMED.get(error["param"], error["param"])}}


ENTRY_BYTES = 600
"""Memory of a stored entry besides its id and content."""


class ResponsesReply(Reply):
    """Formats the answer to one request."""

    def __init__(self, completions: Completions, stored: StoredResponses, content: object) -> None:
        """Read a request in decoded JSON, which goes on from `stored` responses. Raises
        RequestError."""
        request = ResponsesRequest.parse(content)
        chat = request.chat_request(stored.items(request.all_items))
        super().__init__(request.stream, partial(completions.chat, chat))
        self._request = request
        self._completions = completions
        self._stored = stored
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(completions.clock())
        self._n_events = 0

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        if self._request.store:
            output = [self._item(part, "completed") for part in completion.parts]
            told = [{"type": "item_reference", "id": item["id"]} for item in output]
            self._stored.add(self._id, [*self._request.all_items, *told], output)
        is_cut = completion.finish_reason == "length"
        return self._response("incomplete" if is_cut else "completed", completion)

    def step(self, step: Step, completion: Completion) -> Iterator[Answer]:
        if step.begins and not self._n_events:
            yield from self.waiting()
        if step.change is not None:
            for kind, fields in self._events(step.change):
                yield self._event(kind, **fields)

    def end(self, completion: Completion) -> Iterator[Answer]:
        response = self.whole((), completion)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, refusal: Refusal) -> Iterator[Answer]:
        if not self._n_events:
            yield from self.waiting()
        error = {"code": refusal.code or "server_error", "message": str(refusal)}
        response = self._response("failed") | {"error": error}
        yield self._event("response.failed", response=response)

    def waiting(self) -> Iterator[Answer]:
        response = self._response("in_progress")
        if not self._n_events:
            yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def _events(self, change: Change) -> Iterator[tuple[str, Answer]]:
        """Kinds and fields of the events that tell a change."""
        part, (_, _, kind, field) = change.part, _KINDS[change.part.kind]
        output = {"output_index": part.index}
        place = {"item_id": self._item_id(part), **output}
        if part.kind != "call":
            place["content_index"] = 0
        if change.kind == "begins":
            item = self._item(part, "in_progress")
            yield "response.output_item.added", {**output, "item": item}
        if change.kind == "begins" and part.kind != "call":
            empty = _content(AnswerPart(part.kind, part.index))
            yield "response.content_part.added", {**place, "part": empty}
        logged: Answer = {"logprobs": []} if part.kind == "text" else {}
        if change.kind == "ends":
            named = {"name": part.name} if part.kind == "call" else {}
            yield f"{kind}.done", {**place, **named, field: part.text, **logged}
            if part.kind != "call":
                yield "response.content_part.done", {**place, "part": _content(part)}
            item = self._item(part, "completed")
            yield "response.output_item.done", {**output, "item": item}
        elif change.text:
            yield f"{kind}.delta", {**place, "delta": change.text, **logged}

    def _event(self, kind: str, **fields: Any) -> Answer:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def _item_id(self, part: AnswerPart) -> str:
        return f"{_KINDS[part.kind][0]}_{part.index}{self._id.removeprefix('resp')}"

    def _item(self, part: AnswerPart, status: str) -> Answer:
        item = {"id": self._item_id(part), **_KINDS[part.kind][1], "status": status}
        is_begun = status == "in_progress"
        if part.kind == "call":
            arguments = "" if is_begun else part.text
            return item | {"call_id": part.call_id, "name": part.name, "arguments": arguments}
        return item | {"content": [] if is_begun else [_content(part)]}

    def _response(self, status: str, completion: Completion | None = None) -> Answer:
        """The response object, whose output is there once the completion has ended."""
        asked, now = self._request, int(self._completions.clock())
        parts = completion.parts if completion is not None else []
        output = [self._item(part, "completed") for part in parts]
        if output:
            output[-1]["status"] = status
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        form = asked.text.format.model_dump(by_alias=True)
        if form["type"] != "json_schema":
            form = {"type": form["type"]}
        tools = [
            {"type": "function"} | {name: tool.get(name) for name in _OF_TOOLS}
            for tool in asked.tools or ()
            if tool.get("type") == "function"
        ]
        fields = _SAMPLING | self._completions.sampling | asked.model_dump(exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": now if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": reason,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._completions.model,
            "output": output,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {n: getattr(asked.reasoning, n, None) for n in ("effort", "summary")},
            "service_tier": "default",
            "store": asked.store,
            "text": {"format": form},
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": tools,
            "top_logprobs": 0,
            "truncation": "disabled",
            "usage": _usage(completion) if completion is not None else None,
            **{name: float(fields[name]) for name in _SAMPLING},
            **dict.fromkeys(_NULLS),
        }


def _content(part: AnswerPart) -> Answer:
    """The content of an item, as far as it goes."""
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}


def _usage(completion: Completion) -> Answer:
    usage = completion.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class StoredResponses:
    """Items of input and output by their ids, and those of a response by its id, of `max_bytes`
    together: those not asked for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, bytes] = OrderedDict()
        """Lists of items as JSON, which refer to others."""
        self._lock = Lock()

    def add(self, identity: str, items: Sequence[Any], output: Sequence[Answer]) -> None:
        """Keep the items of a response, and those of its output under their own ids."""
        with self._lock:
            for name, its in [*((one["id"], [one]) for one in output), (identity, items)]:
                self._stored[name] = json.dumps(its, separators=(",", ":")).encode()
            n_bytes = sum(len(name) + len(its) + ENTRY_BYTES for name, its in self._stored.items())
            while n_bytes > self._max_bytes:
                n_bytes -= sum(map(len, self._stored.popitem(last=False))) + ENTRY_BYTES

    def items(self, items: Sequence[Any]) -> list[Any]:
        """The items with those that references stand for in their places. Raises RequestError if
        one is not kept any more, and for more than all that is kept."""
        found, waiting, left_bytes = [], [*reversed(items)], self._max_bytes
        with self._lock:
            while waiting:
                item = waiting.pop()
                if not isinstance(item, Mapping) or item.get("type") != "item_reference":
                    found.append(item)
                elif (name := str(item.get("id"))) in self._stored:
                    left_bytes -= len(self._stored[name])
                    if left_bytes < 0:
                        raise RequestError("input refers to more than all that is kept", "input")
                    self._stored.move_to_end(name)
                    waiting += reversed(json.loads(self._stored[name]))
                else:
                    raise RequestError(
                        f"nothing is kept as {name!r}: this server keeps the latest responses in "
                        "memory, if `store` is not false; send the whole conversation as input",
                        "previous_response_id" if name.startswith("resp_") else "input",
                        "previous_response_not_found",
                    )
        return found
