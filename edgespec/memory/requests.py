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
"""Most memory of an answer with log probabilities or several choices."""
GRAMMARS_AT_ONCE = 2
"""Grammars that several texts at once may have at work; further ones wait."""
ANSWER_BYTES_PER_TOKEN, ANSWER_BYTES_PER_ENTRY = 1_200, 950
"""Memory of an answer, as values and as JSON, for each token and each log probability."""
BYTES_PER_CHARACTER = 13
"""Most bytes of a character of an answer: as text, as JSON and as UTF-8."""
CHARACTERS_PER_TOKEN = 32
"""Most characters that the tokens of a text have on average."""
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
    return ANSWER_BYTES // _token_bytes(n_others)


def answer_bytes(n_tokens: int, n_others: int | None, echoed: int) -> int:
    """Memory of an answer kept whole: its log probabilities, None for none, and the text of its
    choices, `echoed` characters of which are prompts."""
    logged = 0 if n_others is None else n_tokens * _token_bytes(n_others)
    n_characters = echoed + CHARACTERS_PER_TOKEN * n_tokens
    return min(ANSWER_BYTES, logged + BYTES_PER_CHARACTER * n_characters)


def pool_bytes(grammar_bytes: int, answers: bool, n_texts: int) -> int:
    """Memory that requests with grammars and large answers share, whoever comes first: enough for
    any one of them. A grammar takes `grammar_bytes`, 0 where there are none."""
    of_one = grammar_bytes + answers * ANSWER_BYTES
    return max(of_one, min(GRAMMARS_AT_ONCE, n_texts) * grammar_bytes)


def _token_bytes(n_others: int) -> int:
    return ANSWER_BYTES_PER_TOKEN + ANSWER_BYTES_PER_ENTRY * (1 + n_others)
