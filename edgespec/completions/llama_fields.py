"""Translates fields of llama.cpp, llama-cpp-python and vLLM to those of OpenAI's requests.

Fields that do not change the text are accepted and dropped; values that would change it are
refused. Knows no session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.settings.config import INT32_MAX
from edgespec.settings.parsing import MAX_BIAS

_WITHOUT_EFFECT = frozenset(
    {"cache_prompt", "id_slot", "n_keep", "timings_per_token", "backend_sampling", "models"}
    | {"xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "request_id"}
    | {"dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "priority"}
    | {"spaces_between_special_tokens", "verbosity", "prediction", "parse_tool_calls"}
    | {"user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"}
    | {"prompt_cache_retention", "prompt_cache_options", "skip_special_tokens", "reasoning_format"}
)
"""Fields accepted with any value: they change only speed or placement, or tune samplers whose own
field is refused."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "penalize_nl": (False,),
    "logits_processor": ([],),
    "logits_processors": ([],),
    "stopping_criteria": ([],),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "dynatemp_range": (0,),
    "min_keep": (0, 1),
    "n_indent": (0,),
    "n_discard": (0,),
    "t_max_predict_ms": (0, -1),
    "t_max_prompt_ms": (0, -1),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "lora": ([],),
    "samplers": ([],),
}
"""Accepted values, which do not change the text, by field; null is accepted for all fields."""
_RENAMED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "n_predict": ("max_tokens", {"type": "integer", "minimum": -1, "maximum": INT32_MAX}),
    "repetition_penalty": ("repeat_penalty", {"type": "number"}),
}
"""Our name of a field, and its schema."""
_OBJECT, _TEXT, _BOOL = {"type": "object"}, {"type": "string"}, {"type": "boolean"}
_TRANSLATED: Mapping[str, dict[str, Any]] = {
    "json_schema": _OBJECT,
    "grammar": _TEXT,
    "guided_json": _OBJECT,
    "guided_regex": _TEXT,
    "guided_choice": {"type": "array", "items": _TEXT},
    "guided_grammar": _TEXT,
    "structured_outputs": _OBJECT,
    "n_probs": {"type": "integer", "minimum": 0},
    "enable_thinking": _BOOL,
    "thinking": _OBJECT,
}
KNOWN = (*_WITHOUT_EFFECT, *_NEUTRAL, *_RENAMED, *_TRANSLATED)
SCHEMAS: Mapping[str, dict[str, Any]] = {
    **{name: {} for name in sorted(_WITHOUT_EFFECT)},
    **{name: {"enum": [*values, None]} for name, values in _NEUTRAL.items()},
    **{name: {"anyOf": [its, {"type": "null"}]} for name, (_, its) in _RENAMED.items()},
    **{name: {"anyOf": [its, {"type": "null"}]} for name, its in _TRANSLATED.items()},
}
"""JSON schemas of the known fields."""


class FieldError(ValueError):
    """A field has a value that would change the text and is not supported."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def translated(content: Mapping[str, Any], is_chat: bool = True) -> dict[str, Any]:
    """The request with llama.cpp's fields translated or dropped. Raises FieldError."""
    fields = {
        name: value
        for name, value in content.items()
        if name not in _WITHOUT_EFFECT and value is not None
    }
    for name in _NEUTRAL.keys() & fields.keys():
        if fields.pop(name) not in _NEUTRAL[name]:
            neutral = " or ".join(map(json.dumps, _NEUTRAL[name])) or "null"
            raise FieldError(name, f"{name}: this server cannot do that, only {neutral}")
    for name in _RENAMED.keys() & fields.keys():
        fields.setdefault(_RENAMED[name][0], fields.pop(name))
    if found := _format({name: fields.pop(name, None) for name in _TRANSLATED if name in fields}):
        fields.setdefault("response_format", found)
    if n_probs := content.get("n_probs"):
        more = {"logprobs": True, "top_logprobs": n_probs} if is_chat else {"logprobs": n_probs}
        fields = more | fields
    _settle_thinking(content, fields)
    _settle_numbers(fields)
    return fields


def _format(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The format of the text that fields of llama.cpp and vLLM ask for; None if they ask for
    none."""
    asked = given.get("structured_outputs") or {}
    schema = given.get("json_schema", given.get("guided_json", asked.get("json")))
    choices = given.get("guided_choice") or asked.get("choice")
    pattern = given.get("guided_regex") or asked.get("regex")
    grammar = given.get("grammar") or given.get("guided_grammar") or asked.get("grammar")
    if schema is not None:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        return {"type": "json_object", "schema": schema}
    if choices:
        pattern = "|".join(re.escape(str(choice)) for choice in choices)
    if pattern:
        return {"type": "regex", "pattern": pattern}
    return {"type": "grammar", "grammar": grammar} if grammar else None


def _settle_thinking(content: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """Translate the fields that turn reasoning on and off."""
    is_on = content.get("enable_thinking")
    if isinstance(thinking := content.get("thinking"), Mapping):
        is_on = thinking.get("type") != "disabled"
    if is_on is not None:
        fields.setdefault("reasoning", {"enabled": is_on})


def _settle_numbers(fields: dict[str, Any]) -> None:
    """Translate lists of biases, and llama.cpp's -1 (no limit, all tokens, random seed)."""
    for name in ("max_tokens", "max_completion_tokens"):
        if fields.get(name) == -1:
            fields[name] = INT32_MAX
    if fields.get("seed") == -1:
        del fields["seed"]
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    biases = fields.get("logit_bias")
    if isinstance(biases, list) and all(isinstance(b, list) and len(b) == 2 for b in biases):
        if not all(isinstance(token, int) for token, _ in biases):
            raise FieldError("logit_bias", "logit_bias: tokens are known by their ids here")
        fields["logit_bias"] = {
            token: -MAX_BIAS if bias is False else bias for token, bias in biases
        }
