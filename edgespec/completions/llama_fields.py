"""Translates fields of llama.cpp, llama-cpp-python and vLLM to those of OpenAI's requests.

Fields that do not change the text are accepted and dropped; values that would change it are
refused. Knows no session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.settings.config import INT32_MAX
from edgespec.settings.parsing import MAX_BIAS

_WITHOUT_EFFECT = frozenset(
    {"cache_prompt", "id_slot", "n_keep", "timings_per_token", "backend_sampling"}
    | {"xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n"}
    | {"dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "dynatemp_exponent"}
    | {"spaces_between_special_tokens", "priority", "request_id"}
    | {"verbosity", "prediction", "prompt_cache_retention"}
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
    "penalize_nl": (False,),
    "logits_processor": ([],),
    "stopping_criteria": ([],),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "dynatemp_range": (0,),
    "min_keep": (0, 1),
    "n_indent": (0,),
    "n_probs": (0,),
    "n_discard": (0,),
    "t_max_predict_ms": (0, -1),
    "t_max_prompt_ms": (0, -1),
    "post_sampling_probs": (False,),
    "return_tokens": (False,),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "suffix": ("",),
    "lora": ([],),
    "samplers": ([],),
    "grammar": ("",),
    "reasoning_format": ("auto", "deepseek"),
    "parse_tool_calls": (True,),
}
"""Accepted values, which do not change the text, by field; null is accepted for all fields."""
KNOWN = (*_WITHOUT_EFFECT, *_NEUTRAL, "n_predict", "json_schema")
SCHEMAS: Mapping[str, dict[str, Any]] = {
    **{name: {} for name in sorted(_WITHOUT_EFFECT)},
    **{name: {"enum": [*values, None]} for name, values in _NEUTRAL.items()},
    "n_predict": {"type": ["integer", "null"], "minimum": -1, "maximum": INT32_MAX},
    "json_schema": {"type": ["object", "null"]},
}
"""JSON schemas of the known fields."""


class FieldError(ValueError):
    """A field has a value that would change the text and is not supported."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def translated(content: Mapping[str, Any]) -> dict[str, Any]:
    """The request with llama.cpp's fields translated or dropped. Raises FieldError."""
    fields = dict(content)
    for name in _WITHOUT_EFFECT & fields.keys():
        del fields[name]
    for name in _NEUTRAL.keys() & fields.keys():
        value = fields.pop(name)
        if value is not None and value not in _NEUTRAL[name]:
            neutral = " or ".join(map(json.dumps, _NEUTRAL[name])) or "null"
            raise FieldError(name, f"{name}: this server cannot do that, only {neutral}")
    if "n_predict" in fields:
        limit = fields.pop("n_predict")
        if fields.get("max_tokens") is None:
            fields["max_tokens"] = limit
    if fields.get("json_schema") is not None:
        schema = fields.pop("json_schema")
        if fields.get("response_format") is None:
            fields["response_format"] = {"type": "json_object", "schema": schema}
    else:
        fields.pop("json_schema", None)
    _settle_numbers(fields)
    return fields


def _settle_numbers(fields: dict[str, Any]) -> None:
    """Translate lists of biases, and llama.cpp's -1 (no limit, all tokens, random seed)."""
    for name in ("max_tokens", "max_completion_tokens"):
        if fields.get(name) == -1:
            fields[name] = INT32_MAX
    if fields.get("seed") == -1:
        fields["seed"] = None
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    biases = fields.get("logit_bias")
    if isinstance(biases, list) and all(isinstance(b, list) and len(b) == 2 for b in biases):
        if not all(isinstance(token, int) for token, _ in biases):
            raise FieldError("logit_bias", "logit_bias: tokens are known by their ids here")
        fields["logit_bias"] = {
            token: -MAX_BIAS if bias is False else bias for token, bias in biases
        }
