"""What a server keeps of memory for the requests of its clients. Pure arithmetic on what was
measured."""

from __future__ import annotations

MIB = 1 << 20
LEAST_BODY_BYTES = 64 << 10
BODY_BYTES_PER_TOKEN = 16
"""Of the context: more than tokens have, escapes of JSON included; schemas and tools have
LEAST_BODY_BYTES besides."""
BYTES_PER_ENCODED_BYTE = 125
"""That llama.cpp's tokenizer takes of a text of blanks or of digits and letters in turn; 48 of
prose."""
BYTES_PER_DECODED_BYTE = 30
"""That the values of JSON take, of `[{},{},...`; 2 of text."""
CONNECTIONS_BYTES = 3 * MIB
"""Of the 64 that may be open, with what they have read and not handed over."""
BODIES_AT_ONCE = 8
"""As large as one may be, that arrive or wait; smaller ones are more."""


def most_body_bytes(n_ctx: int) -> int:
    """Of a request, where a server is not told."""
    return LEAST_BODY_BYTES + BODY_BYTES_PER_TOKEN * n_ctx


def most_held_bytes(body_bytes: int) -> int:
    """Of all bodies that arrive or wait."""
    return BODIES_AT_ONCE * body_bytes


def bytes_needed(body_bytes: int, most_characters: int) -> int:
    """Memory that requests with bodies of at most `body_bytes` take, of which one is understood at
    a time and no text of more than `most_characters` is encoded."""
    text_bytes = min(body_bytes, most_characters)
    return (
        CONNECTIONS_BYTES
        + most_held_bytes(body_bytes)
        + BYTES_PER_ENCODED_BYTE * text_bytes
        + BYTES_PER_DECODED_BYTE * (body_bytes - text_bytes)
    )
