"""Translates fields of llama.cpp, llama-cpp-python and vLLM to those of OpenAI's requests.

Fields that do not change the text are accepted and dropped; values that would change it are
refused. Knows no session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.completions.protocols.request_parts import RequestError, reading
from edgespec.settings.config import INT32_MAX
from edgespec.settings.parsing import MAX_BIAS

_ANY: tuple[object, ...] = (object(),)
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    name: values
    for names, values in (
        ("cache_prompt id_slot n_keep timings_per_token backend_sampling models priority", _ANY),
        ("xtc_threshold dry_base dry_allowed_length dry_penalty_last_n mirostat_tau", _ANY),
        ("dry_sequence_breakers mirostat_eta dynatemp_exponent skip_special_tokens", _ANY),
        ("spaces_between_special_tokens verbosity prediction user metadata store", _ANY),
        ("service_tier prompt_cache_key prompt_cache_retention prompt_cache_options", _ANY),
        ("safety_identifier request_id reasoning_format parse_tool_calls", _ANY),
        ("xtc_probability dry_multiplier mirostat mirostat_mode top_a min_tokens", (0,)),
        ("dynatemp_range n_indent n_discard", (0,)),
        ("typical_p tfs_z length_penalty best_of", (1,)),
        ("logits_processor logits_processors stopping_criteria stop_token_ids bad_words", ([],)),
        ("allowed_token_ids functions lora samplers", ([],)),
        ("penalize_nl include_stop_str_in_output use_beam_search echo", (False,)),
        ("t_max_predict_ms t_max_prompt_ms", (0, -1)),
        ("audio web_search_options", ()),
        ("top_n_sigma", (-1, 0)),
        ("min_keep", (0, 1)),
        ("modalities", (["text"],)),
        ("function_call", ("none", "auto")),
    )
    for name in names.split()
}
"""Accepted values by field, which do not change the text: of some fields any, since they change
only speed or placement, or tune samplers whose own field is refused; null of all."""
_RENAMED = {"n_predict": "max_tokens", "repetition_penalty": "repeat_penalty"}
"""Our name of a field."""
_TRANSLATED = (
    *("json_schema", "grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "n_probs", "enable_thinking", "thinking"),
)
KNOWN = (*_ACCEPTED, *_RENAMED, *_TRANSLATED)


def translated(content: Mapping[str, Any], is_chat: bool = True) -> dict[str, Any]:
    """The request with llama.cpp's fields translated or dropped. Raises RequestError."""
    fields = {name: value for name, value in content.items() if value is not None}
    for name in _ACCEPTED.keys() & fields.keys():
        value, accepted = fields.pop(name), _ACCEPTED[name]
        if accepted is not _ANY and value not in accepted:
            neutral = " or ".join(map(json.dumps, accepted)) or "null"
            raise RequestError(f"{name}: this server cannot do that, only {neutral}", name)
    for name in _RENAMED.keys() & fields.keys():
        fields.setdefault(_RENAMED[name], fields.pop(name))
    given = {name: fields.pop(name) for name in _TRANSLATED if name in fields}
    with reading(", ".join(given), next(iter(given), "")):
        if found := _format(given):
            fields.setdefault("response_format", found)
    if n_probs := content.get("n_probs"):
        more = {"logprobs": True, "top_logprobs": n_probs} if is_chat else {"logprobs": n_probs}
        fields = more | fields
    is_on = content.get("enable_thinking")
    if isinstance(thinking := content.get("thinking"), Mapping):
        is_on = thinking.get("type") != "disabled"
    if is_on is not None:
        fields.setdefault("reasoning", {"enabled": is_on})
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


def _settle_numbers(fields: dict[str, Any]) -> None:
    """Translate lists of biases, and llama.cpp's -1 (no limit, all tokens, random seed)."""
    meant = {"max_tokens": INT32_MAX, "max_completion_tokens": INT32_MAX, "seed": None, "top_k": 0}
    fields |= {name: value for name, value in meant.items() if fields.get(name) == -1}
    biases = fields.get("logit_bias")
    if isinstance(biases, list) and all(isinstance(b, list) and len(b) == 2 for b in biases):
        if not all(isinstance(token, int) for token, _ in biases):
            raise RequestError("logit_bias: tokens are known by their ids here", "logit_bias")
        fields["logit_bias"] = {
            token: -MAX_BIAS if bias is False else bias for token, bias in biases
        }
