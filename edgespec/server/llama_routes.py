"""The forms of llama.cpp's server: its own completions, filling in the middle, what it tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from edgespec import extras
from edgespec.completions.answers import Answer
from edgespec.completions.protocols.dialect import Asked, Dialect, Event
from edgespec.completions.refusals import Refusal
from edgespec.completions.requests import ChatRequest, CompletionRequest, RequestError
from edgespec.completions.running_request import Completion
from edgespec.completions.service import Completions

_OWN = ("input_prefix", "input_suffix", "input_extra", "prompt")
_STOPS = {"length": "limit", "context": "limit", "cancelled": "limit", "stop": "eos"}


def llama_dialect(completions: Completions, fills: bool = False) -> Dialect:
    """`/completion`, or with `fills` `/infill`."""

    def read(content: object) -> Asked:
        fields = as_fields(content)
        asked = {name: value for name, value in fields.items() if name not in _OWN}
        prompt: Any = fields.get("prompt", "")
        if fills:
            prefix, suffix = (str(fields.get(name) or "") for name in _OWN[:2])
            files = [as_fields(file) for file in fields.get("input_extra") or ()]
            prompt = completions.filling.prompt(prefix, suffix, files, str(prompt or ""))
        asked = {"n_predict": -1} | asked | {"prompt": prompt}
        request = CompletionRequest.parse(asked)
        return Asked(
            request.stream, partial(completions.text, request), LlamaReply(completions.model)
        )

    return read


def as_fields(content: object) -> Mapping[str, Any]:
    """The body of a request, which must be an object. Raises RequestError."""
    if not isinstance(content, Mapping):
        raise RequestError("the request must be a JSON object")
    return content


class LlamaReply:
    """Formats the answer to one request."""

    def __init__(self, model: str) -> None:
        self._model = model

    def whole(self, answer: Answer, completion: Completion) -> Answer:
        (choice, *_) = answer["choices"]
        result = completion.result
        stop = "word" if result.stopped_by is not None else _STOPS[result.finish_reason]
        return {
            **self._part(choice, completion, True),
            "model": self._model,
            "stop_type": stop,
            "stopping_word": result.stopped_by or "",
            "has_new_line": "\n" in result.text,
            "truncated": result.dropped_tokens > 0,
            "generation_settings": {},
            "tokens_cached": len(result.prompt_tokens) + len(result.tokens),
            "timings": answer.get("timings", {}),
        }

    def stream(self, completion: Completion) -> Completion:
        return completion

    def chunk(self, told: Answer, completion: Completion) -> Iterable[Event]:
        for choice in told["choices"]:
            if choice["finish_reason"]:
                yield Event(self.whole(told, completion))
            else:
                yield Event(self._part(choice, completion, False))

    def end(self, completion: Completion) -> Iterable[Event]:
        return ()

    def failed(self, refusal: Refusal, request_id: str) -> Iterable[Event]:
        return (Event(refusal.content),)

    def _part(self, choice: Answer, completion: Completion, is_last: bool) -> Answer:
        part = {
            "index": choice["index"],
            "content": choice["text"],
            "tokens": [],
            "stop": is_last,
            "id_slot": 0,
            "tokens_predicted": completion.usage.completion_tokens,
            "tokens_evaluated": completion.n_prompt_tokens,
        }
        if (logged := choice["logprobs"]) is not None:
            part["completion_probabilities"] = [
                {
                    "token": token,
                    "logprob": logprob,
                    "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
                }
                for token, logprob, top in zip(
                    logged["tokens"], logged["token_logprobs"], logged["top_logprobs"], strict=True
                )
            ]
        return part


def props(completions: Completions, n_ctx: int, n_slots: int) -> Answer:
    """The answer to `/props`."""
    return {
        "default_generation_settings": {"n_ctx": n_ctx, "params": completions.sampling},
        "total_slots": n_slots,
        "model_path": completions.model,
        "model_alias": completions.model,
        "chat_template": completions.template,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"edgespec {extras.installed_version()}",
    }


def slots(n_ctx: int, n_slots: int, n_processing: int) -> list[Answer]:
    """The answer to `/slots`."""
    return [
        {"id": place, "n_ctx": n_ctx, "is_processing": place < n_processing}
        for place in range(n_slots)
    ]


def apply_template(completions: Completions, content: object) -> Answer:
    """The answer to `/apply-template`: the prompt of a conversation as text."""
    return {"prompt": completions.rendered(ChatRequest.parse(content))}
