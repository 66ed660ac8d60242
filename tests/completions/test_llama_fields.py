"""Fields that clients of llama.cpp's server send are understood, as are those of vLLM's."""

import pytest

from edgespec.completions.llama_fields import INFILL_MIN_P
from edgespec.completions.protocols.request_parts import RequestError, leaving_out
from edgespec.completions.request_grammars import grammar_of
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.errors import GrammarError
from edgespec.grammar.matcher import check
from edgespec.settings.config import INT32_MAX
from sentences import refuses

WEB_UI = {
    "messages": [{"role": "user", "content": "a"}],
    "stream": True,
    "cache_prompt": True,
    "samplers": [],
    "temperature": 0.8,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "max_tokens": -1,
    "timings_per_token": True,
    "reasoning_format": "auto",
}


def text(**fields: object) -> CompletionRequest:
    return CompletionRequest.parse({"prompt": "a"} | fields)


def test_what_its_page_sends_is_taken():
    request = ChatRequest.parse(WEB_UI)
    assert request.limit == INT32_MAX
    assert request.sampling_fields()["repeat_last_n"] == 64


def test_samplers_that_a_list_leaves_out_are_off_and_unknown_ones_are_named():
    with leaving_out(names := []):
        request = text(samplers=["top_k", "top_p", "infill"], top_k=40, top_p=0.99)
    assert names == ["samplers.infill"]
    expected = {"temperature": 1, "top_k": 40, "top_p": 0.99, "min_p": INFILL_MIN_P}
    assert request.sampling_fields() == expected


def test_fields_of_other_servers_are_no_slips():
    with leaving_out(names := []):
        ChatRequest.parse(WEB_UI | {"max_tool_calls": 3, "add_special_tokens": False})
    assert {*names} == {"max_tool_calls", "add_special_tokens"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"n_probs": 5}, {"logprobs": 5}),
    ],
)
def test_other_names_of_a_field_are_taken(fields, expected):
    assert text(**fields) == text(**expected)


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"guided_regex": "a+"}, "pattern", "a+"),
        ({"guided_choice": ["a.b", "c"]}, "pattern", r"a\.b|c"),
        ({"structured_outputs": {"regex": "a+"}}, "pattern", "a+"),
        ({"guided_json": {"type": "object"}}, "schema_", {"type": "object"}),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
    ],
)
def test_grammars_of_other_servers_are_formats(fields, kind, value):
    assert getattr(text(**fields).response_format, kind) == value


def test_llama_cpps_grammars_are_read():
    grammar = grammar_of(text(grammar='root ::= "a" [b-c]+').response_format)
    check(grammar)
    with pytest.raises(GrammarError):
        grammar_of(text(grammar="root ::= (").response_format)


@pytest.mark.parametrize("fields", [{"enable_thinking": False}, {"thinking": {"type": "disabled"}}])
def test_reasoning_is_turned_off_by_other_names(fields):
    request = ChatRequest.parse({"messages": WEB_UI["messages"]} | fields)
    assert request.template_variables["enable_thinking"] is False
    assert request.reasoning_budget == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2},
        {"dry_multiplier": 0.8},
        {"typical_p": 0.5},
        {"xtc_probability": 0.1},
        {"samplers": ["temperature", "top_k"]},
        {"samplers": "kt"},
        {"samplers": [{}]},
        {"n": 129},
        {"n": 0},
        {"best_of": 3},
        {"max_tokens": -2},
        {"logit_bias": [[5, 1.5]]},
        {"structured_outputs": [1]},
        {"json_schema": "{"},
        {"guided_choice": 5},
        {"cache_promt": True},
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields):
    with refuses(RequestError):
        text(**fields)


@pytest.mark.parametrize("prompts", [["a"], [[1, 2]], ["a", "b"], [[1], [2, 3]]])
def test_a_list_of_prompts_is_taken(prompts):
    assert CompletionRequest.parse({"prompt": prompts}).prompt == prompts
