"""Answers to `/tokenize` and `/detokenize`, in the shapes of llama.cpp's server."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import Field

from edgespec.completions.protocols.request_parts import ParsedRequest


class Tokenizes(Protocol):
    """Protocol of the tokenizer of a session."""

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...


class TokenizeRequest(ParsedRequest):
    """A request for the tokens of a text."""

    content: str | list[str | int] = ""
    """A text, or texts and tokens in turn."""
    add_special: bool = False
    """Begin with a BOS token if the model uses one."""
    parse_special: bool = True
    """Read spelled control tokens as such; otherwise as text."""
    with_pieces: bool = False


class DetokenizeRequest(ParsedRequest):
    """A request for the text of tokens."""

    tokens: list[int] = Field(default_factory=list)


def tokenize(tokenizer: Tokenizes, content: object) -> dict[str, Any]:
    """The tokens of the text in decoded JSON. Raises UsageError."""
    request = TokenizeRequest.parse(content)
    given = request.content
    tokens: list[int] = []
    for place, part in enumerate([given] if isinstance(given, str) else given):
        if isinstance(part, str):
            has_special = request.add_special and place == 0
            tokens += tokenizer.encode(part, has_special, request.parse_special)
        else:
            tokenizer.piece(part)  # raises for a number that is no token
            tokens.append(part)
    if not request.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens]}


def detokenize(tokenizer: Tokenizes, content: object) -> dict[str, Any]:
    """The text of the tokens in decoded JSON. Raises UsageError."""
    request = DetokenizeRequest.parse(content)
    data = b"".join(map(tokenizer.piece, request.tokens))
    return {"content": data.decode(errors="replace")}


def _piece(tokenizer: Tokenizes, token: int) -> str | list[int]:
    """The text of a token, or its bytes where they are no text by themselves."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
