"""Memory that a server reserves for requests and responses: arithmetic on measured figures."""

from __future__ import annotations

MIB = 1 << 20
MIN_BODY_BYTES = 64 << 10
BODY_BYTES_PER_TOKEN = 16
"""Bytes of a body per token of the context, JSON escapes included; MIN_BODY_BYTES are for schemas
and tools."""
EMBEDDING_BODY_BYTES = 256 << 10
"""Default size limit of a body of texts that become vectors, of which a request may have many."""
BYTES_PER_ENCODED_BYTE = 125
"""Memory of llama.cpp's tokenizer per byte in the worst case, blanks or alternating digits and
letters; prose takes 48."""
BYTES_PER_DECODED_BYTE = 30
"""Memory of parsed JSON per byte in the worst case, `[{},{},...`; strings take 2."""
CONNECTIONS_BYTES = 3 * MIB
"""Memory of the 64 connections that may be open, including unread input."""
BODIES_AT_ONCE = 8
"""Bodies of the maximum size that may arrive or wait at once; smaller ones may be more."""
STORED_BYTES = 2 * MIB
"""Memory of the conversations that a server keeps for requests that go on from them."""
ANSWER_BYTES = 8 * MIB
"""Most memory of an answer with log probabilities or several choices."""
GRAMMARS_AT_ONCE = 2
"""Grammars that may be in use at once; requests with further ones wait."""
ANSWER_BYTES_PER_TOKEN, ANSWER_BYTES_PER_ENTRY = 1_200, 950
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


def max_held_bytes(body_bytes: int) -> int:
    """Size limit of all bodies that arrive or wait."""
    return BODIES_AT_ONCE * body_bytes


def bytes_needed(body_bytes: int, max_characters: int) -> int:
    """Memory for requests with bodies of at most `body_bytes`, decoded one at a time.

    Texts of more than `max_characters` are refused before they are tokenized.
    """
    text_bytes = min(body_bytes, max_characters)
    return (
        CONNECTIONS_BYTES
        + STORED_BYTES
        + max_held_bytes(body_bytes)
        + BYTES_PER_ENCODED_BYTE * text_bytes
        + BYTES_PER_DECODED_BYTE * (body_bytes - text_bytes)
    )


def max_answer_tokens(n_others: int) -> int:
    """Token limit of an answer kept in memory with `n_others` log probabilities per token."""
    return ANSWER_BYTES // _token_bytes(n_others)


def answer_bytes(n_tokens: int, n_others: int | None, echoed: int) -> int:
    """Memory of an answer: its text and `n_others` log probabilities per token, None for none.

    The choices contain `echoed` characters of prompts besides their `n_tokens` tokens.
    """
    logged = 0 if n_others is None else n_tokens * _token_bytes(n_others)
    n_characters = echoed + CHARACTERS_PER_TOKEN * n_tokens
    return min(ANSWER_BYTES, logged + BYTES_PER_CHARACTER * n_characters)


def pool_bytes(grammar_bytes: int, answers: bool, n_texts: int) -> int:
    """Size of the pool shared by grammars and large answers, enough for any one request.

    A grammar takes `grammar_bytes`, 0 if grammars are not used.
    """
    of_one = grammar_bytes + answers * ANSWER_BYTES
    return max(of_one, min(GRAMMARS_AT_ONCE, n_texts) * grammar_bytes)


def _token_bytes(n_others: int) -> int:
    return ANSWER_BYTES_PER_TOKEN + ANSWER_BYTES_PER_ENTRY * (1 + n_others)
