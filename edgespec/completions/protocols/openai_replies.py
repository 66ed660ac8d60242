"""Answers in the formats of OpenAI's chat completions and completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from edgespec.completions import answers
from edgespec.completions.answers import Answer
from edgespec.completions.protocols.answer_parts import Step, delta_of, message_of
from edgespec.completions.running_request import Completion, Reply
from edgespec.values import TokenEvent


class ChatReply(Reply):
    """Formats chat completions; each choice is a message of the assistant."""

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        message: Answer = {"role": "assistant", "refusal": None, "annotations": []}
        return {
            "message": message | message_of(completion.parts),
            "logprobs": answers.chat_logprobs(logged, completion.delivery.piece_of),
            "finish_reason": completion.finish_reason,
        }

    def whole(self, choices: Sequence[Answer], completion: Completion) -> Answer:
        return completion.delivery.envelope.whole(choices, completion.usage) | completion.marks

    def step(self, step: Step, completion: Completion) -> Iterable[Answer]:
        delivery = completion.delivery
        if (choice := self._choice(step, completion)) is None:
            return
        if delivery.tells_origins and not (step.begins or step.progress):
            choice["origins"] = answers.origins(step.events)
        progress = step.progress and {"prompt_progress": asdict(step.progress)}
        for index in step.indices:
            chunk = delivery.envelope.chunk({"index": index} | choice)
            yield chunk | (progress or completion.marks)

    def end(self, completion: Completion) -> Iterable[Answer]:
        if completion.delivery.wants_usage:
            yield completion.delivery.envelope.usage_chunk(completion.usage) | completion.marks

    def _choice(self, step: Step, completion: Completion) -> Answer | None:
        """The choice of a chunk without its index; None if there is none."""
        delta: Answer | None = {"role": "assistant", "content": ""} if step.begins else {}
        if step.change is not None:
            delta = delta_of(step.change)
        logprobs = answers.chat_logprobs(step.events, completion.delivery.piece_of)
        reason = step.finish_reason
        return (
            None
            if delta is None
            else {"delta": delta, "logprobs": logprobs, "finish_reason": reason}
        )


class TextReply(ChatReply):
    """Formats completions; each choice continues a prompt."""

    _offset = 0
    """Characters of the current text so far."""

    def choice(self, completion: Completion, logged: Sequence[TokenEvent]) -> Answer:
        echo, piece_of = completion.source.echo, completion.delivery.piece_of
        return {
            "text": echo + completion.result.text,
            "logprobs": answers.text_logprobs(logged, piece_of, len(echo)),
            "finish_reason": completion.finish_reason,
        }

    def _choice(self, step: Step, completion: Completion) -> Answer | None:
        text = step.change.text if step.change else ""
        if step.begins:
            text, self._offset = completion.source.echo, 0
        begin = self._offset
        self._offset += len(text)
        if not (text or step.finish_reason or step.progress):
            return None
        logprobs = answers.text_logprobs(step.events, completion.delivery.piece_of, begin)
        return {"text": text, "logprobs": logprobs, "finish_reason": step.finish_reason}
