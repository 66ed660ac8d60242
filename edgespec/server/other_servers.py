"""The forms of other servers: llama.cpp's own completions and filling in the middle, and Ollama's,
which editors look for first: models, chats, completions, in streams of lines of JSON.

Knows no session.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isfinite
from typing import Any

from pydantic import Field

from edgespec.completions import answers
from edgespec.completions.answers import Answer
from edgespec.completions.filling import FillingIn
from edgespec.completions.protocols.answer_parts import Step, message_of
from edgespec.completions.protocols.model_names import HostedModel
from edgespec.completions.protocols.request_parts import ParsedRequest, RequestError
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions
from edgespec.settings.parsing import MAX_BIAS
from edgespec.values import ModelInfo, TokenEvent


class _OwnFields(ParsedRequest):
    """Fields of requests that only llama.cpp's server has."""

    prompt: Any = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, Any]] = Field(default_factory=list)
    """Further files of a request to fill in, each its `text` and `filename`."""
    n_indent: int = Field(default=0, ge=0, le=1000)
    """A whole answer ends in front of a line that is indented less."""
    return_tokens: bool = False
    response_fields: list[str] = Field(default_factory=list)


def llama_dialect(completions: Completions, content: object, fills: bool = False) -> Reply:
    """Read a request to `/completion`, or with `fills` to `/infill`."""
    fields = as_fields(content)
    names = _OwnFields.model_fields.keys()
    asked = {name: value for name, value in fields.items() if name not in names}
    own = _OwnFields.parse({name: fields[name] for name in names & fields.keys()})
    prompt, filling = own.prompt, completions.filling
    if fills:
        prompt = filling.prompt(own.input_prefix, own.input_suffix, own.input_extra, str(prompt))
    limit = asked.get("n_predict")
    asked |= {"prompt": _prompts(prompt, filling), "n_predict": -1 if limit is None else limit}
    if biases := asked.get("logit_bias"):
        asked["logit_bias"] = _biases(biases, filling)
    request = CompletionRequest.parse(asked)
    sampling = completions.sampling_of(request)
    request = request.model_copy(update={"seed": sampling.seed})
    settings = sampling.model_dump() | {
        "n_predict": completions.limit_of(request),
        "stop": request.stop or [],
        "logit_bias": [
            {"token": token, "bias": bias if isfinite(bias) else None}
            for token, bias in sampling.logit_bias.items()
        ],
    }
    return LlamaReply(
        {"model": completions.model, "generation_settings": settings},
        own,
        request.stream,
        partial(completions.text, request),
    )


def as_fields(content: object) -> Mapping[str, Any]:
    """The body of a request, which must be an object. Raises RequestError."""
    if not isinstance(content, Mapping):
        raise RequestError("the request must be a JSON object")
    return content


def _prompts(given: Any, filling: FillingIn) -> Any:
    """Prompts as texts or tokens, of lists with both in turn and of objects with a text, too."""
    match given:
        case {"prompt_string": text, **others}:
            if others:
                raise RequestError("prompt: models here read text only", "prompt")
            return text
        case [*parts] if not any(isinstance(part, int) for part in parts):
            return [_prompts(part, filling) for part in parts]
        case [*parts] if {*map(type, parts)} == {int, str}:
            return filling.mixed(parts)
    return given


def _biases(given: Any, filling: FillingIn) -> Any:
    """Biases by token; those of a text are its tokens'."""
    pairs = given.items() if isinstance(given, Mapping) else given
    biases: dict[Any, Any] = {}
    try:
        for token, bias in pairs:
            is_text = isinstance(token, str) and not token.isdigit()
            tokens = filling.tokens(token) if is_text else [token]
            biases |= dict.fromkeys(tokens, -MAX_BIAS if bias is False else bias)
    except (TypeError, ValueError):  # no pairs, which is refused where all requests are read
        return given
    return biases


class LlamaReply(Reply):
    """Formats the answer to one request."""

    def __init__(self, added: Answer, own: _OwnFields, *asked: Any) -> None:
        """`added` is part of every text's end."""
        super().__init__(*asked)
        self._added = added
        self._own = own

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        result = completion.result
        tokens = {"tokens": [*result.tokens] if self._own.return_tokens else []}
        kept, *_ = re.split(rf"\n(?![ \t]{{{self._own.n_indent}}})", result.text)
        return self._text(kept, True, logged, completion) | tokens

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Any:
        if chosen := self._own.response_fields:
            choices = [{path: _at(path, text) for path in chosen} for text in choices]
        return choices[0] if len(choices) == 1 else choices

    def step(self, step: Step, completion: Completion) -> Iterable[Answer]:
        text, is_last = step.change.text if step.change else "", step.finish_reason is not None
        if text or is_last or step.progress:
            told = self._text(text, is_last, step.events, completion)
            progress = {"prompt_progress": asdict(step.progress)} if step.progress else {}
            yield {"index": step.index} | told | progress

    def _text(
        self, text: str, is_last: bool, events: Sequence[TokenEvent], completion: Completion
    ) -> Answer:
        told: Answer = {
            "content": text,
            "tokens": [event.token for event in events],
            "stop": is_last,
            "id_slot": 0,
            "tokens_evaluated": completion.source.n_prompt_tokens,
        }
        if logged := answers.chat_logprobs(events, completion.piece_of):
            told["completion_probabilities"] = logged["content"]
        return told | self._ended(completion) if is_last else told

    def _ended(self, completion: Completion) -> Answer:
        result = completion.result
        prompt = b"".join(map(completion.piece_of, result.prompt_tokens))
        stop = "eos" if result.finish_reason == "stop" else "limit"
        return {
            "stop_type": stop if result.stopped_by is None else "word",
            "stopping_word": result.stopped_by or "",
            "prompt": prompt.decode(errors="replace"),
            "has_new_line": "\n" in result.text,
            "truncated": result.finish_reason == "context",
            "tokens_predicted": len(result.tokens),
            "tokens_cached": len(result.prompt_tokens) + len(result.tokens),
            "timings": answers.timings(result),
            **self._added,
        }


def _at(path: str, found: Any) -> Any:
    """The value at a path of keys, such as `timings/predicted_n`; None if there is none."""
    for key in path.split("/"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


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
        messages = _messages(messages) if isinstance(messages, list) else messages
        asked |= {"tools": fields.get("tools") or None}
    else:
        _refuse_images(fields)
        turns = (("system", fields.get("system")), ("user", prompt))
        messages = [{"role": role, "content": content} for role, content in turns if content]
        if not messages:  # which loads a model
            messages, asked["max_tokens"] = [{"role": "user", "content": ""}], 0
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


def _messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages in OpenAI's format; a result gets the id of the first call of its function that has
    none yet, or of the first call."""
    turns, waiting = [*map(_message, messages)], list[tuple[Any, str]]()
    for place, turn in enumerate(turns):
        if isinstance(calls := turn.get("tool_calls"), list):
            for at, call in enumerate(calls):
                call.setdefault("id", f"call_{place}_{at}")
            waiting = [(as_fields(call.get("function")).get("name"), call["id"]) for call in calls]
        if turn.get("role") == "tool" and waiting and not turn.get("tool_call_id"):
            name = turn.get("tool_name")
            found = next((one for one in waiting if one[0] == name), waiting[0])
            waiting.remove(found)
            turn["tool_call_id"] = found[1]
    return turns


def _message(message: Any) -> dict[str, Any]:
    """A message in OpenAI's format: calls have arguments as objects, and may have no ids."""
    turn = dict(as_fields(message))
    _refuse_images(turn)
    turn.pop("images", None)
    if thinking := turn.pop("thinking", None):
        turn["reasoning_content"] = thinking
    if isinstance(calls := turn.get("tool_calls"), list):
        turn["tool_calls"] = [{"type": "function"} | dict(as_fields(call)) for call in calls]
    return turn


def _refuse_images(fields: Mapping[str, Any]) -> None:
    if fields.get("images"):
        raise RequestError("images: models here read text only", "images")


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
        called = [_function(call["function"]) for call in message.get("tool_calls", ())]
        if calls := [{"function": one} for one in called if one]:
            content["tool_calls"] = calls
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
    """The call of a function; empty for one that was cut off, which nobody may make."""
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return {}
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
