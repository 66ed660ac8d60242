"""The forms of llama.cpp's server: its own completions, filling in the middle, what it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import isfinite
from typing import Any

from pydantic import Field

from edgespec.completions import answers
from edgespec.completions.answers import Answer
from edgespec.completions.filling import FillingIn
from edgespec.completions.protocols.answer_parts import Step
from edgespec.completions.protocols.request_parts import ParsedRequest, RequestError
from edgespec.completions.requests import CompletionRequest
from edgespec.completions.running_request import Completion, Reply
from edgespec.completions.service import Completions
from edgespec.settings.parsing import MAX_BIAS
from edgespec.values import TokenEvent

_STOPS = {"length": "limit", "context": "limit", "cancelled": "limit", "stop": "eos"}


class _OwnFields(ParsedRequest):
    """Fields of requests that only llama.cpp's server has."""

    prompt: Any = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, Any]] = Field(default_factory=list)
    """Further files of a request to fill in, each its `text` and `filename`."""
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
    asked |= {"prompt": _prompts(prompt, filling), "n_predict": asked.get("n_predict", -1)}
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
        own.return_tokens,
        own.response_fields,
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
                message = "prompt: this server reads text, no pictures and sounds"
                raise RequestError(message, "prompt")
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

    def __init__(self, added: Answer, has_tokens: bool, chosen: Sequence[str], *asked: Any) -> None:
        """`added` is part of every text's end. Of a whole answer, fields that are `chosen` are
        told, or all."""
        super().__init__(*asked)
        self._added = added
        self._returns_tokens = has_tokens
        self._chosen = chosen

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        result = completion.result
        tokens = {"tokens": [*result.tokens] if self._returns_tokens else []}
        return self._text(result.text, True, logged, completion) | tokens

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Any:
        if self._chosen:
            choices = [{path: _at(path, text) for path in self._chosen} for text in choices]
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
        stop = "word" if result.stopped_by is not None else _STOPS[result.finish_reason]
        return {
            "stop_type": stop,
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
