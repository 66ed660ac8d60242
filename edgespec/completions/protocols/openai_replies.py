"""Answers in the formats of OpenAI's chat completions and completions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from edgespec import extras
from edgespec.completions import answers
from edgespec.completions.answers import Answer
from edgespec.completions.protocols.answer_parts import Step, delta_of, message_of
from edgespec.completions.requests import ChatRequest, CommonRequest, CompletionRequest
from edgespec.completions.running_request import Completion, Reply
from edgespec.values import TokenEvent

if TYPE_CHECKING:
    from edgespec.completions.service import Completions


class ChatReply(Reply):
    """Formats chat completions; each choice is a message of the assistant."""

    kinds = ("chat.completion", "chat.completion.chunk", "chatcmpl")
    """Names of a whole answer, of a chunk of a stream, and the prefix of ids."""
    request_type: type[CommonRequest] = ChatRequest

    def __init__(self, completions: Completions, content: object) -> None:
        """Read a request in decoded JSON. Raises RequestError."""
        request = self.request_type.parse(content)
        is_text = isinstance(request, CompletionRequest)
        start: Any = completions.text if is_text else completions.chat
        super().__init__(request.stream, partial(start, request))
        self._request = request
        self._common = {
            "id": f"{self.kinds[2]}-{secrets.token_hex(12)}",
            "created": int(completions.clock()),
            "model": completions.model,
            "system_fingerprint": f"edgespec_{extras.installed_version()}",
        }

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        message: Answer = {"role": "assistant", "refusal": None, "annotations": []}
        return {
            "message": message | message_of(completion.parts),
            "logprobs": answers.chat_logprobs(logged, completion.piece_of),
            "finish_reason": completion.finish_reason,
        }

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        usage = {"usage": completion.usage.as_dict()}
        told = self._common | {"object": self.kinds[0], "choices": list(choices)}
        return told | usage | completion.marks

    def step(self, step: Step, completion: Completion) -> Iterable[Answer]:
        if (choice := self._choice(step, completion)) is None:
            return
        if self._request.return_origins and not (step.begins or step.progress):
            choice["origins"] = answers.origins(step.events)
        progress = step.progress and {"prompt_progress": asdict(step.progress)}
        yield self._chunk({"index": step.index} | choice) | (progress or completion.marks)

    def end(self, completion: Completion) -> Iterable[Answer]:
        if self._request.stream_options.include_usage:
            yield self._chunk() | {"usage": completion.usage.as_dict()} | completion.marks

    def _chunk(self, *choices: Answer) -> Answer:
        return self._common | {"object": self.kinds[1], "choices": [*choices]}

    def _choice(self, step: Step, completion: Completion) -> Answer | None:
        """The choice of a chunk without its index; None if there is none."""
        delta: Answer | None = {"role": "assistant", "content": ""} if step.begins else {}
        if step.change is not None and (delta := delta_of(step.change)) is None:
            return None
        logprobs = answers.chat_logprobs(step.events, completion.piece_of)
        return {"delta": delta, "logprobs": logprobs, "finish_reason": step.finish_reason}


class TextReply(ChatReply):
    """Formats completions; each choice continues a prompt."""

    kinds = ("text_completion", "text_completion", "cmpl")
    request_type = CompletionRequest
    _offset = 0
    """Characters of the current text so far."""

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        return {
            "text": completion.result.text,
            "logprobs": answers.text_logprobs(logged, completion.piece_of, 0),
            "finish_reason": completion.finish_reason,
        }

    def _choice(self, step: Step, completion: Completion) -> Answer | None:
        text = step.change.text if step.change else ""
        begin = 0 if step.begins else self._offset
        self._offset = begin + len(text)
        if not (text or step.finish_reason or step.progress):
            return None
        logprobs = answers.text_logprobs(step.events, completion.piece_of, begin)
        return {"text": text, "logprobs": logprobs, "finish_reason": step.finish_reason}
