"""Limits of requests and answers, and the memory that a server keeps for them.

Arithmetic on measured figures.
"""

from __future__ import annotations

from edgespec.grammar.specification import GRAMMAR_BYTES

MIB = 1 << 20
MIN_BODY_BYTES = 64 << 10
BODY_BYTES_PER_TOKEN = 16
"""Bytes of a body per token of the context, JSON escapes included; MIN_BODY_BYTES are for schemas
and tools."""
EMBEDDING_BODY_BYTES = 256 << 10
"""Default size limit of a body of texts that become vectors, of which a request may have many."""
BODIES_AT_ONCE = 8
"""Bodies of the maximum size that may arrive or wait at once; smaller ones may be more."""
BYTES_PER_ENCODED_BYTE = 125
"""Memory of llama.cpp's tokenizer per byte in the worst case, blanks or alternating digits and
letters; prose takes 48, parsed JSON 30. Bodies are read one at a time."""
CONNECTIONS_BYTES = 3 * MIB
"""Memory of the 64 connections that may be open, including unread input."""
STORED_BYTES = 2 * MIB
"""Memory of the conversations that a server keeps for requests that go on from them."""
ANSWER_BYTES = 8 * MIB
"""Most memory of an answer with log probabilities or several choices."""
POOL_BYTES = GRAMMAR_BYTES + ANSWER_BYTES
"""Memory of grammars and large answers at work, enough for any one request; others wait for it."""
ANSWER_BYTES_PER_TOKEN, ANSWER_BYTES_PER_ENTRY = 1_200, 1_020
"""Memory of an answer, as values and as JSON, per token and per log probability."""
BYTES_PER_CHARACTER = 13
"""Most bytes per character of an answer: as text, as JSON and as UTF-8."""
CHARACTERS_PER_TOKEN = 32
"""Most characters per token, on average over a text."""
MAX_ANSWER_CHARACTERS = ANSWER_BYTES // BYTES_PER_CHARACTER
"""Most characters of all choices of a request whose answer is kept in memory."""


def max_body_bytes(n_ctx: int) -> int:
    """Default size limit of a request's body."""
    return MIN_BODY_BYTES + BODY_BYTES_PER_TOKEN * n_ctx


def serving_bytes(body_bytes: int) -> int:
    """Memory for requests with bodies of at most `body_bytes`."""
    bodies = (BODIES_AT_ONCE + BYTES_PER_ENCODED_BYTE) * body_bytes
    return CONNECTIONS_BYTES + STORED_BYTES + POOL_BYTES + bodies


def max_answer_tokens(n_others: int) -> int:
    """Token limit of an answer kept in memory with `n_others` log probabilities per token."""
    return ANSWER_BYTES // _token_bytes(n_others)


def answer_bytes(n_tokens: int, n_others: int | None) -> int:
    """Memory of an answer: its text and `n_others` log probabilities per token, None for none."""
    logged = 0 if n_others is None else _token_bytes(n_others)
    return min(ANSWER_BYTES, n_tokens * (logged + BYTES_PER_CHARACTER * CHARACTERS_PER_TOKEN))


def _token_bytes(n_others: int) -> int:
    return ANSWER_BYTES_PER_TOKEN + ANSWER_BYTES_PER_ENTRY * (1 + n_others)
