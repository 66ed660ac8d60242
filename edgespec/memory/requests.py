"""Memory that a server reserves for requests and answers. Pure arithmetic on measured figures."""

from __future__ import annotations

MIB = 1 << 20
LEAST_BODY_BYTES = 64 << 10
BODY_BYTES_PER_TOKEN = 16
"""Bytes of a body for each token of the context, JSON's escapes included; schemas and tools have
LEAST_BODY_BYTES besides."""
BYTES_PER_ENCODED_BYTE = 125
"""Memory of llama.cpp's tokenizer for each byte of its worst texts: blanks, or digits and letters
in turn; 48 for prose."""
BYTES_PER_DECODED_BYTE = 30
"""Memory of the values of JSON for each byte of its worst text, `[{},{},...`; strings take 2."""
CONNECTIONS_BYTES = 3 * MIB
"""Memory of the 64 connections that may be open, with their unread input."""
BODIES_AT_ONCE = 8
"""Number of bodies of the largest size that may arrive or wait; smaller ones may be more."""
ANSWER_BYTES = 8 * MIB
"""Memory for an answer with log probabilities or several choices, of each text at once."""
ANSWER_BYTES_PER_TOKEN, ANSWER_BYTES_PER_ENTRY = 1_200, 950
"""Memory of an answer, as values and as JSON, for each token and each log probability."""
BYTES_PER_CHARACTER = 13
"""Most bytes of a character of an answer: as text, as JSON and as UTF-8."""
MOST_ANSWER_CHARACTERS = ANSWER_BYTES // BYTES_PER_CHARACTER
"""Characters of several choices that are kept whole."""


def most_body_bytes(n_ctx: int) -> int:
    """Default size limit of a request's body."""
    return LEAST_BODY_BYTES + BODY_BYTES_PER_TOKEN * n_ctx


def most_held_bytes(body_bytes: int) -> int:
    """Size limit of all bodies that arrive or wait."""
    return BODIES_AT_ONCE * body_bytes


def bytes_needed(body_bytes: int, most_characters: int) -> int:
    """Memory of requests with bodies of at most `body_bytes`, decoded one at a time.

    No text of more than `most_characters` is encoded.
    """
    text_bytes = min(body_bytes, most_characters)
    return (
        CONNECTIONS_BYTES
        + most_held_bytes(body_bytes)
        + BYTES_PER_ENCODED_BYTE * text_bytes
        + BYTES_PER_DECODED_BYTE * (body_bytes - text_bytes)
    )


def most_answer_tokens(n_others: int) -> int:
    """Token limit of an answer kept whole with `n_others` alternatives for each token."""
    return ANSWER_BYTES // (ANSWER_BYTES_PER_TOKEN + ANSWER_BYTES_PER_ENTRY * (1 + n_others))
