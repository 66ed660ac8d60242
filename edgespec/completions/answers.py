"""Parts of answers in OpenAI's formats.

Text, tokens and statistics in, dictionaries out. Knows no model and no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from edgespec.values import GenerationResult, TokenEvent

Answer = dict[str, Any]
PieceOf = Callable[[int], bytes]
"""The bytes of a token."""


@dataclass(slots=True)
class Usage:
    """Token counts of one request: each prompt once, and every choice's completion."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were already in the KV cache."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens of the completions that are reasoning, its marks included."""

    def as_dict(self) -> Answer:
        """The usage in OpenAI's format."""
        usage: Answer = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


def timings(result: GenerationResult) -> Answer:
    """Counts and milliseconds of a generation by the names of llama.cpp's server."""
    found: Answer = {"cache_n": result.reused_tokens}
    if drafted := result.speculation.drafted:
        found |= {"draft_n": drafted, "draft_n_accepted": result.speculation.accepted}
    n_known, spent = result.reused_tokens + result.unread_tokens, result.timings
    n_read = len(result.prompt_tokens) - n_known
    for name, n, seconds, per_s in (
        ("prompt", n_read, spent.prompt_s, n_read / spent.prompt_s if spent.prompt_s else 0.0),
        ("predicted", len(result.tokens), spent.decode_s, spent.tokens_per_s),
    ):
        found |= {
            f"{name}_n": n,
            f"{name}_ms": 1000 * seconds,
            f"{name}_per_token_ms": 1000 / per_s if per_s else 0.0,
            f"{name}_per_second": per_s,
        }
    return found


def origins(events: Iterable[TokenEvent]) -> list[Answer]:
    """The text that each token added, the drafter that had guessed it, and the pass it came out
    of."""
    return [{"text": event.text, "by": event.source, "pass": event.round} for event in events]


def chat_logprobs(events: Iterable[TokenEvent], piece_of: PieceOf) -> Answer | None:
    """Log probabilities of a chat choice; None if none were requested."""
    content = [
        _named(event.token, event.logprobs.logprob, piece_of)
        | {"top_logprobs": [_named(token, value, piece_of) for token, value in event.logprobs.top]}
        for event in events
        if event.logprobs is not None
    ]
    return {"content": content, "refusal": None} if content else None


def text_logprobs(events: Iterable[TokenEvent], piece_of: PieceOf, offset: int) -> Answer | None:
    """Log probabilities of a text choice as parallel lists; None if none were requested."""
    logged = [(event.token, event.logprobs) for event in events if event.logprobs is not None]
    tokens = [_text(piece_of(token)) for token, _ in logged]
    told: Answer = {
        "tokens": tokens,
        "token_logprobs": [logprobs.logprob for _, logprobs in logged],
        "top_logprobs": [
            {_text(piece_of(token)): value for token, value in logprobs.top}
            for _, logprobs in logged
        ],
        "text_offset": [*accumulate(map(len, tokens), initial=offset)][:-1],
    }
    return told if logged else None


def _named(token: int, logprob: float, piece_of: PieceOf) -> Answer:
    piece = piece_of(token)
    return {"id": token, "token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
