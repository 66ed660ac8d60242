"""Reads chat templates, special tokens and recommended sampling from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.ports.language_model import DEFAULT, ChatFormat
from edgespec_runtimes.gguf.file.header import GgufFile

TEMPLATE = "tokenizer.chat_template"
_TOKENS = ("bos", "eos", "unknown", "padding", "cls", "seperator", "mask")
"""Names of special tokens in llama.cpp's metadata keys."""
_NAMES = {"unknown": "unk", "padding": "pad", "seperator": "sep"}
"""Names of tokens in templates, where they differ from those in keys."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}
"""Recommended sampling settings: llama.cpp's names to edgespec's."""


def special_tokens(header: GgufFile) -> dict[str, int]:
    """Ids of special tokens by their names in templates, without those of the wrong type."""
    ids = {name: header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _TOKENS}
    return {
        f"{_NAMES.get(name, name)}_token": token
        for name, token in ids.items()
        if type(token) is int
    }


def chat_format(header: GgufFile, texts: Mapping[int, bytes]) -> ChatFormat:
    """The chat format in the metadata, without templates of the wrong type, and special tokens
    without `texts`."""
    templates = {}
    for key, value in header.metadata.items():
        if isinstance(value, str) and value and key == TEMPLATE:
            templates[DEFAULT] = value
        elif isinstance(value, str) and value and key.startswith(TEMPLATE + "."):
            templates[key.removeprefix(TEMPLATE + ".")] = value
    special = {
        name: texts[token].decode(errors="replace")
        for name, token in special_tokens(header).items()
        if token in texts
    }
    return ChatFormat(templates, special, sampling=recommended_sampling(header))


def recommended_sampling(header: GgufFile) -> dict[str, Any]:
    """The sampling settings in the metadata."""
    return {
        setting: header.metadata[f"general.sampling.{key}"]
        for key, setting in _SAMPLING.items()
        if f"general.sampling.{key}" in header.metadata
    }
