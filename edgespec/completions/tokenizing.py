"""Answers to `/tokenize` and `/detokenize`, in the shapes of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from edgespec.completions.requests import RequestError


class Tokenizes(Protocol):
    """Protocol of the tokenizer of a session."""

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...


class _TokenRequest(BaseModel):
    """Base of both requests; fields that are not known are ignored, as llama.cpp does."""

    model_config = ConfigDict(frozen=True, strict=True)


R = TypeVar("R", bound=_TokenRequest)


class TokenizeRequest(_TokenRequest):
    """A request for the tokens of a text."""

    content: str | list[str | int] = ""
    """A text, or texts and tokens in turn."""
    add_special: bool = False
    """Begin with a BOS token if the model uses one."""
    parse_special: bool = True
    """Read spelled control tokens as such; otherwise as text."""
    with_pieces: bool = False


class DetokenizeRequest(_TokenRequest):
    """A request for the text of tokens."""

    tokens: list[int] = []


def tokenize(tokenizer: Tokenizes, content: object) -> dict[str, Any]:
    """The tokens of the text in decoded JSON. Raises UsageError."""
    request = _parsed(TokenizeRequest, content)
    parts: Sequence[str | int] = (
        [request.content] if isinstance(request.content, str) else request.content
    )
    tokens: list[int] = []
    is_first = True
    for part in parts:
        if isinstance(part, str):
            has_special = request.add_special and is_first
            tokens += tokenizer.encode(part, has_special, request.parse_special)
        else:
            tokenizer.piece(part)  # raises for a number that is no token
            tokens.append(part)
        is_first = False
    if not request.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens]}


def detokenize(tokenizer: Tokenizes, content: object) -> dict[str, Any]:
    """The text of the tokens in decoded JSON. Raises UsageError."""
    request = _parsed(DetokenizeRequest, content)
    data = b"".join(map(tokenizer.piece, request.tokens))
    return {"content": data.decode(errors="replace")}


def _piece(tokenizer: Tokenizes, token: int) -> str | list[int]:
    """The text of a token, or its bytes where they are no text by themselves."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _parsed(kind: type[R], content: object) -> R:
    if not isinstance(content, Mapping):
        raise RequestError("the body must be an object")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        details = error.errors()[0]
        param = str(details["loc"][0])
        reason = details["msg"].replace("Input should be", "it must be")
        raise RequestError(f"{param}: {reason}", param) from error
