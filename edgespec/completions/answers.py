"""Answers in OpenAI's shapes: whole, and as the chunks of a stream.

Text, tokens and figures in, dictionaries out. Knows no model and no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.settings.config import Keeps
from edgespec.values import FinishReason, GenerationResult, TokenEvent

Answer = dict[str, Any]
PieceOf = Callable[[int], bytes]
"""The bytes of a token."""

_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "cancelled": "stop",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """Fields that an answer and all its chunks share."""

    kind: Literal["chat.completion", "text_completion"]
    id: str
    created: int
    """Seconds since 1970."""
    model: str

    def whole(self, choices: Sequence[Answer], usage: Usage) -> Answer:
        """The whole answer."""
        return self._around(choices, self.kind) | {"usage": usage.as_dict()}

    def chunk(self, choice: Answer) -> Answer:
        """A chunk of a streamed answer."""
        return self._around([choice], self._chunk_kind)

    def usage_chunk(self, usage: Usage) -> Answer:
        """The last chunk of a stream whose request asks for usage."""
        return self._around([], self._chunk_kind) | {"usage": usage.as_dict()}

    @property
    def _chunk_kind(self) -> str:
        return f"{self.kind}.chunk" if self.kind == "chat.completion" else self.kind

    def _around(self, choices: Sequence[Answer], kind: str) -> Answer:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


@dataclass(slots=True)
class Usage:
    """Tokens of one request: each prompt once, and every choice's answer."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompts that were in the models already."""
    completion_tokens: int = 0

    def as_dict(self) -> Answer:
        """The usage in OpenAI's shape."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def marks(result: GenerationResult) -> Answer:
    """Fields that tell how a text differs from the target's own, and what its context has lost;
    none if nothing."""
    stats = result.speculation
    found: Answer = {}
    if stats.keeps != Keeps.DRAWS:
        found["acceptance"] = {"rule": stats.acceptance, "keeps": stats.keeps}
    if result.dropped_tokens:
        found["context_shift"] = {"dropped_tokens": result.dropped_tokens}
    return found


def finish_reason(result: GenerationResult, has_calls: bool = False) -> str:
    if has_calls and result.finish_reason == "stop":
        return "tool_calls"
    return _REASONS[result.finish_reason]


def chat_choice(
    message: Answer, reason: str | None, events: Iterable[TokenEvent], piece_of: PieceOf
) -> Answer:
    """A choice of a chat completion, without its index."""
    return {
        "message": {"role": "assistant", "refusal": None} | message,
        "logprobs": chat_logprobs(events, piece_of),
        "finish_reason": reason,
    }


def chat_delta(
    delta: Answer,
    reason: str | None = None,
    events: Iterable[TokenEvent] = (),
    piece_of: PieceOf | None = None,
) -> Answer:
    """A choice of a chunk of a chat completion, without its index."""
    logprobs = chat_logprobs(events, piece_of) if piece_of else None
    return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}


def text_choice(
    text: str,
    reason: str | None,
    events: Iterable[TokenEvent],
    piece_of: PieceOf,
    offset: int = 0,
) -> Answer:
    """A choice of a completion without its index, whole or a chunk that begins at `offset`."""
    return {
        "text": text,
        "logprobs": text_logprobs(events, piece_of, offset),
        "finish_reason": reason,
    }


def chat_logprobs(events: Iterable[TokenEvent], piece_of: PieceOf) -> Answer | None:
    """Log probabilities of a chat choice; None for a request without them."""
    content = [
        _named(event.token, event.logprobs.logprob, piece_of)
        | {"top_logprobs": [_named(token, value, piece_of) for token, value in event.logprobs.top]}
        for event in events
        if event.logprobs is not None
    ]
    return {"content": content, "refusal": None} if content else None


def text_logprobs(events: Iterable[TokenEvent], piece_of: PieceOf, offset: int) -> Answer | None:
    """Log probabilities of a text choice: parallel lists, alternatives by their text."""
    logged = [(event, event.logprobs) for event in events if event.logprobs is not None]
    if not logged:
        return None
    offsets = []
    for event, _ in logged:
        offsets.append(offset)
        offset += len(_text(piece_of(event.token)))
    return {
        "tokens": [_text(piece_of(event.token)) for event, _ in logged],
        "token_logprobs": [logprobs.logprob for _, logprobs in logged],
        "top_logprobs": [
            {_text(piece_of(token)): value for token, value in logprobs.top}
            for _, logprobs in logged
        ],
        "text_offset": offsets,
    }


def _named(token: int, logprob: float, piece_of: PieceOf) -> Answer:
    piece = piece_of(token)
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
