"""Reads the chat format from the Hugging Face tokenizer files beside an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.ports.language_model import DEFAULT, ChatFormat
from edgespec_runtimes.onnx.files.source_model import GENAI_CONFIG, read_json, read_text, section

MAX_BYTES = 16 << 20
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
"""Recommended sampling settings: names in generation_config.json to edgespec's."""


def chat_format(folder: Path) -> ChatFormat:
    """Templates, special tokens and sampling settings in the files beside a model.

    A `.jinja` file takes precedence over tokenizer_config.json. Raises ModelError for a damaged
    file.
    """
    config = read_json(folder / "tokenizer_config.json")
    templates = _templates(config.get("chat_template"))
    templates |= _templates(read_json(folder / "chat_template.json").get("chat_template"))
    if source := read_text(folder / "chat_template.jinja", MAX_BYTES):
        templates[DEFAULT] = source
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path, MAX_BYTES) or ""
    tokens = read_json(folder / "special_tokens_map.json") | config
    special_tokens = {
        name: text
        for name, value in tokens.items()
        if name.endswith("_token") and (text := _token(value)) is not None
    }
    return ChatFormat(
        {name: text for name, text in templates.items() if text},
        special_tokens,
        sampling=recommended_sampling(
            read_json(folder / "generation_config.json") or genai_search(folder)
        ),
    )


def genai_search(folder: Path) -> dict[str, Any]:
    """The section `search` of onnxruntime-genai's configuration."""
    return section(read_json(folder / GENAI_CONFIG), "search")


def recommended_sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling settings in generation_config.json, or in genai_config.json's `search`."""
    settings = {
        setting: config[name] for name, setting in _SAMPLING.items() if config.get(name) is not None
    }
    return settings | ({"temperature": 0.0} if config.get("do_sample") is False else {})


def _templates(value: Any) -> dict[str, str]:
    """Templates by name, from one template or a list of named ones."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if not isinstance(value, list):
        return {}
    return {
        str(entry["name"]): entry["template"]
        for entry in value
        if isinstance(entry, Mapping) and "name" in entry and isinstance(entry.get("template"), str)
    }


def _token(value: Any) -> str | None:
    """Text of a token, which is given as text or as an object with it."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None
