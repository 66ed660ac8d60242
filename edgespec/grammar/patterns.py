"""Finds patterns of property names that leave no name besides given ones, with llguidance."""

from __future__ import annotations

from functools import cache

import llguidance


def exhausts(pattern: str, names: list[str]) -> bool:
    """True if `pattern` matches no property name besides `names`; False also if it is invalid."""
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, False),
        "patternProperties": {pattern: True},
        "additionalProperties": False,
    }
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        matcher = llguidance.LLMatcher(_tokenizer(), grammar, log_level=0)
    except ValueError:
        return False
    opening = b'{"'
    return not matcher.is_error() and matcher.try_consume_tokens(list(opening)) < len(opening)


@cache
def _tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), slices=[])


class _Bytes:
    """A vocabulary of all bytes in llguidance's interface."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<|end|>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
