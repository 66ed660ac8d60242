"""What a GGUF file says about conversations."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.ports.chat_format import DEFAULT, ChatFormat
from edgespec_runtimes.gguf.file.header import GgufFile

_TEMPLATE = "tokenizer.chat_template"
_TOKENS = ("bos", "eos", "unknown", "padding", "cls", "seperator", "mask")
"""As llama.cpp spells their keys."""
_NAMES = {"unknown": "unk", "padding": "pad", "seperator": "sep"}
"""Where templates call a token otherwise."""


def chat_format(header: GgufFile, token_table: Sequence[bytes]) -> ChatFormat:
    """Templates and special tokens of the metadata; what has the wrong type is not there."""
    templates = {}
    for key, value in header.metadata.items():
        if isinstance(value, str) and value and key == _TEMPLATE:
            templates[DEFAULT] = value
        elif isinstance(value, str) and value and key.startswith(_TEMPLATE + "."):
            templates[key.removeprefix(_TEMPLATE + ".")] = value
    special_tokens = {}
    for name in _TOKENS:
        token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(token) is int and 0 <= token < len(token_table):
            text = token_table[token].decode(errors="replace")
            special_tokens[f"{_NAMES.get(name, name)}_token"] = text
    return ChatFormat(templates, special_tokens)
