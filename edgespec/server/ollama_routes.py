"""The forms of Ollama's server, which editors look for first: models, chats, completions.

A stream is lines of JSON. Knows no session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from edgespec.completions.answers import Answer
from edgespec.completions.protocols.answer_parts import Step, message_of
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions
from edgespec.server.llama_routes import as_fields
from edgespec.values import ModelInfo

_OPTIONS = {
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty"),
    *("repeat_last_n", "presence_penalty", "frequency_penalty"),
}


def ollama_dialect(completions: Completions, content: object, chats: bool) -> Reply:
    """Read a request to `/api/chat`, or to `/api/generate`, a chat of one message unless `raw`."""
    fields = as_fields(content)
    streams = fields.get("stream") is not False
    prompt, suffix = fields.get("prompt"), fields.get("suffix")
    asked = _sampling(fields) | {"stream": streams, "model": fields.get("model")}
    reply = partial(OllamaReply, str(fields.get("model") or completions.model), chats, streams)
    if not chats and (fields.get("raw") or suffix):
        asked = {"max_tokens": -1} | asked | {"prompt": prompt or "", "suffix": suffix}
        return reply(partial(completions.text, CompletionRequest.parse(asked)))
    if chats:
        messages = fields.get("messages")
        messages = [*map(_message, messages)] if isinstance(messages, list) else messages
        asked |= {"tools": fields.get("tools") or None}
    else:
        turns = (("system", fields.get("system")), ("user", prompt))
        messages = [{"role": role, "content": content} for role, content in turns if content]
    if (thinks := fields.get("think")) is not None:
        name = "effort" if isinstance(thinks, str) else "enabled"
        asked["reasoning"] = {name: thinks}
    chat = ChatRequest.parse(asked | {"messages": messages})
    return reply(partial(completions.chat, chat))


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    options = as_fields(fields.get("options") or {})
    asked = {name: value for name, value in options.items() if name in _OPTIONS}
    if (limit := options.get("num_predict")) is not None:
        asked["max_tokens"] = max(-1, limit) if isinstance(limit, int) else limit
    if form := fields.get("format"):
        asked["response_format"] = {"type": "json_object"} | (
            {"schema": form} if isinstance(form, Mapping) else {}
        )
    return asked


def _message(message: Any) -> dict[str, Any]:
    """A message in OpenAI's format: calls have arguments as objects, and no ids."""
    turn = dict(as_fields(message))
    if turn.pop("images", None):
        raise RequestError("images: models here read text only", "messages")
    if thinking := turn.pop("thinking", None):
        turn["reasoning_content"] = thinking
    if isinstance(calls := turn.get("tool_calls"), list):
        turn["tool_calls"] = [
            {"id": f"call_{place}", "type": "function"} | dict(as_fields(call))
            for place, call in enumerate(calls)
        ]
    return turn


class OllamaReply(Reply):
    """Formats the answer to one request."""

    def __init__(self, model: str, chats: bool, *asked: Any) -> None:
        super().__init__(*asked)
        self._model = model
        self._chats = chats

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        return self._last(message_of(completion.parts), completion)

    def step(self, step: Step, completion: Completion) -> Iterable[Answer]:
        if (change := step.change) is not None and change.part.kind == "call":
            if change.kind == "ends":
                yield self._line(message_of([change.part]))
        elif change is not None and change.text:
            name = "reasoning_content" if change.part.kind == "reasoning" else "content"
            yield self._line({name: change.text})

    def end(self, completion: Completion) -> Iterable[Answer]:
        yield self._last({}, completion)

    def _line(self, message: Mapping[str, Any], is_last: bool = False) -> Answer:
        content: Answer = {"content": message.get("content") or ""}
        if reasoning := message.get("reasoning_content"):
            content["thinking"] = reasoning
        if calls := message.get("tool_calls"):
            content["tool_calls"] = [{"function": _function(call["function"])} for call in calls]
        if self._chats:
            content = {"message": {"role": "assistant"} | content}
        else:
            content["response"] = content.pop("content")
        return {"model": self._model, "created_at": _now(), **content, "done": is_last}

    def _last(self, message: Mapping[str, Any], completion: Completion) -> Answer:
        result, usage = completion.result, completion.usage
        is_cut = completion.finish_reason == "length"
        prompt, decode = result.timings.prompt_s, result.timings.decode_s
        return self._line(message, is_last=True) | {
            "done_reason": "length" if is_cut else "stop",
            "total_duration": round(1e9 * (prompt + decode)),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(1e9 * prompt),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(1e9 * decode),
        }


def _function(function: Mapping[str, Any]) -> Answer:
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:  # of a call that was cut off
        arguments = {}
    return {"name": function["name"], "arguments": arguments}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def ollama_error(refusal: Refusal, request_id: str) -> Answer:
    """The body of an error."""
    return {"error": str(refusal)}


def tag(model: HostedModel) -> Answer:
    """A model in the list of `/api/tags`."""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _now(),
        "size": model.size_bytes,
        "digest": "",
        "details": {"format": "gguf", "family": ""},
    }


def shown(model: HostedModel, info: ModelInfo | None, template: str) -> Answer:
    """The answer to `/api/show`, with more about a model that is loaded."""
    architecture, n_ctx = (info.architecture, info.n_ctx) if info else ("", 0)
    capabilities = ["embedding"] if model.embeds else ["completion", "tools"]
    return {
        "details": {"format": "gguf", "family": architecture},
        "model_info": {
            "general.architecture": architecture,
            f"{architecture}.context_length": n_ctx,
        },
        "capabilities": capabilities,
        "template": template,
    }
