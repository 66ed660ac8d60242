"""Translates fields of llama.cpp, llama-cpp-python and vLLM to those of OpenAI's requests.

Fields that do not change the text are accepted and dropped; values that would change it are
refused. Knows no session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgespec.completions.protocols.request_parts import RequestError, leave_out, reading
from edgespec.settings.config import INT32_MAX

_ANY: tuple[object, ...] = (object(),)
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    name: values
    for names, values in (
        ("cache_prompt id_slot n_keep timings_per_token backend_sampling models priority", _ANY),
        ("xtc_threshold dry_base dry_allowed_length dry_penalty_last_n mirostat_tau", _ANY),
        ("dry_sequence_breakers mirostat_eta dynatemp_exponent skip_special_tokens", _ANY),
        ("spaces_between_special_tokens verbosity prediction user metadata store", _ANY),
        ("service_tier prompt_cache_key prompt_cache_retention prompt_cache_options", _ANY),
        ("safety_identifier request_id reasoning_format parse_tool_calls t_max_prompt_ms", _ANY),
        ("xtc_probability dry_multiplier mirostat mirostat_mode top_a min_tokens", (0,)),
        ("dynatemp_range n_indent n_discard", (0,)),
        ("typical_p tfs_z length_penalty best_of", (1,)),
        ("logits_processor logits_processors stopping_criteria stop_token_ids bad_words", ([],)),
        ("allowed_token_ids functions lora", ([],)),
        ("penalize_nl include_stop_str_in_output use_beam_search echo", (False,)),
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
_UNLIMITED = {"max_tokens": INT32_MAX, "max_completion_tokens": INT32_MAX, "seed": None, "top_k": 0}
"""Values that llama.cpp's -1 stands for: no limit, a random seed, all tokens."""
_SAMPLERS = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1}
"""Samplers in their order, and the values of their fields with which they do nothing."""
INFILL_MIN_P = 0.2
"""Stands for llama.cpp's sampler `infill`, which drops tokens of less than this probability."""
_TRANSLATED = (
    *("json_schema", "grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "n_probs", "enable_thinking", "thinking", "samplers"),
)
KNOWN = (*_ACCEPTED, *_RENAMED, *_TRANSLATED)


def translated(content: Mapping[str, Any], is_chat: bool) -> dict[str, Any]:
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
        if samplers := given.get("samplers"):
            fields |= _selected(samplers)
    if n_probs := content.get("n_probs"):
        more = {"logprobs": True, "top_logprobs": n_probs} if is_chat else {"logprobs": n_probs}
        fields = more | fields
    is_on = content.get("enable_thinking")
    if isinstance(thinking := content.get("thinking"), Mapping):
        is_on = thinking.get("type") != "disabled"
    if is_on is not None:
        fields.setdefault("reasoning", {"enabled": is_on})
    return fields | {name: _UNLIMITED[name] for name in _UNLIMITED if fields.get(name) == -1}


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


def _selected(samplers: Any) -> dict[str, float]:
    """Fields that turn off the samplers which a list leaves out. Raises RequestError."""
    known = [name for name in samplers if name in _SAMPLERS]
    if not isinstance(samplers, list) or known != [name for name in _SAMPLERS if name in known]:
        raise RequestError(f"samplers: a list in the order {', '.join(_SAMPLERS)}", "samplers")
    for name in {*samplers} - {*known}:
        leave_out(f"samplers.{name}")
    off = {name: value for name, value in _SAMPLERS.items() if name not in known}
    return off | ({"min_p": INFILL_MIN_P} if "infill" in samplers else {})
