"""Requests to `/v1/embeddings` and their answers, in OpenAI's format. Knows no server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import BeforeValidator, Field

from edgespec.chat.messages import text_of
from edgespec.completions.protocols.request_parts import ParsedRequest, RequestError, about
from edgespec.completions.requests import check_tokens
from edgespec.errors import ContextOverflow
from edgespec.values import ModelInfo

MAX_TEXTS = 2048
"""Most texts of a request, as OpenAI has it."""


def _as_texts(value: object) -> object:
    """The value as a list of texts, of which each is text, tokens, or one of llama.cpp's objects
    with a text."""
    if not isinstance(value, list) or (value and not isinstance(value[0], str | list | dict)):
        value = [value]
    return [*map(_as_text, value)]


def _as_text(value: object) -> object:
    match value:
        case {"prompt_string": str(text)}:
            return text
        case {"content": [*parts]}:
            return text_of(parts)
    return value


class EmbeddingRequest(ParsedRequest):
    """A request to `/v1/embeddings`."""

    model: str | None = None
    input: Annotated[
        list[str | list[int]],
        BeforeValidator(_as_texts),
        Field(min_length=1, max_length=MAX_TEXTS),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    """Length of a vector: a shorter one than the model's is its beginning, of length 1."""
    truncate: bool | str | None = None
    """Cut texts that are longer than the context; TEI's and Cohere's names of an end are taken."""
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1)
    """vLLM's field: most tokens of a text, whose beginning is kept; -1: the context."""
    user: str | None = None
    """Accepted, without effect."""


class TurnsIntoVectors(Protocol):
    """Protocol of the embedding model that answers."""

    @property
    def target(self) -> ModelInfo: ...

    @property
    def n_values(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def vector(self, tokens: Sequence[int], normalize: bool = False) -> np.ndarray: ...


class Embeddings:
    """The vectors of a request's texts, of length 1, in the order of the texts.

    They are kept as numbers of four bytes, and written piece by piece.
    """

    def __init__(
        self, embedder: TurnsIntoVectors, model: str, request: EmbeddingRequest, max_bytes: int
    ) -> None:
        """Encode the texts; the vectors take at most `max_bytes`. Raises RequestError, and
        ContextOverflow for a text that is too long."""
        self._embedder = embedder
        self._model = model
        self._encoding = request.encoding_format
        n_values, n_texts = embedder.n_values, len(request.input)
        self._n_values = request.dimensions or n_values
        if self._n_values > n_values:
            raise RequestError(
                f"dimensions: {model} gives vectors of {n_values} numbers, not "
                f"{request.dimensions}: leave it out",
                "dimensions",
            )
        n_ctx, asked = embedder.target.n_ctx, request.truncate_prompt_tokens
        self._cuts = asked is not None or request.truncate not in (None, False, "NONE")
        self._most = n_ctx if asked == -1 else min(n_ctx, asked or n_ctx)
        if n_texts > (most := max_bytes // (4 * n_values)):
            raise RequestError(
                f"input: {n_texts:,} vectors of {n_values:,} numbers are more than an answer may "
                f"hold: ask for at most {most:,} at once",
                "input",
            )
        self._texts = [self._encoded(text, place) for place, text in enumerate(request.input)]
        self._vectors: list[np.ndarray] = []

    def compute(self) -> None:
        """Compute the vectors. Raises Cancelled and WeightReadError."""
        self._vectors = [self._vector(tokens) for tokens in self._texts]

    def pieces(self) -> Iterator[str]:
        """The answer as JSON, in pieces of one vector each."""
        yield '{"object": "list", "data": ['
        for index, vector in enumerate(self._vectors):
            content = vector.tolist()
            if self._encoding == "base64":
                content = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            item = {"object": "embedding", "index": index, "embedding": content}
            yield f"{', ' if index else ''}{json.dumps(item)}"
        n_tokens = sum(map(len, self._texts))
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        rest = json.dumps({"model": self._model, "usage": usage}, ensure_ascii=False)
        yield f"], {rest[1:]}"

    def _vector(self, tokens: Sequence[int]) -> np.ndarray:
        vector = self._embedder.vector(tokens, normalize=True)
        if self._n_values == len(vector):
            return vector
        cut: np.ndarray = vector[: self._n_values]
        return cut / max(float(np.linalg.norm(cut)), 1e-12)

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a text, cut in front of the one that ends it if that is asked for."""
        try:
            tokens = self._embedder.encode(text)
        except ContextOverflow:  # of a text too long to be encoded
            if not self._cuts:
                raise
            return self._tokens(text[: len(text) * 3 // 4])
        ending = self._embedder.encode("")[-1:]
        if len(tokens) > self._most and self._cuts and tokens[-1:] == ending:
            return tokens[: self._most - 1] + ending
        return tokens

    def _encoded(self, text: str | list[int], place: int) -> list[int]:
        param, target = f"input.{place}", self._embedder.target
        with about(param):
            tokens = self._tokens(text) if text and isinstance(text, str) else [*text]
            tokens = tokens[: self._most] if self._cuts else tokens
            if len(tokens) > target.n_ctx:
                raise ContextOverflow(target.n_ctx, len(tokens))
        if not tokens:
            raise RequestError(f"{param} is empty: there is no vector of nothing", param)
        check_tokens(tokens, target.n_vocab, param)
        return tokens
