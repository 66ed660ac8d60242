"""Sizes, settings and TOML files: what is taken, and what is refused in which words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest

from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.rules.pacer import PACERS
from edgespec.rules.sampling import SamplingParams
from edgespec.rules.stop_rules import STOP_RULES
from edgespec.settings.base import in_flags, key_of
from edgespec.settings.config import (
    USUAL_DRAFT_MAX,
    GenerateSettings,
    LoadSettings,
    Speculation,
    read_config,
)
from edgespec.settings.units import parse_size
from sentences import refuses


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("512 mb", 512 << 20),
        ("6GiB", 6 << 30),
        ("1.5G", 3 << 29),
        ("2k", 2048),
        ("1T", 1 << 40),
        ("4096", 4096),
        (4096, 4096),
        ("100B", 100),
        ("75%", 750),
    ],
)
def test_a_size_is_binary_in_every_spelling(text: str | int, nbytes: int):
    assert parse_size(text, total_bytes=1000) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "lots", "-1G", "1X", "G", "0", "0M", "1e9", "nan", "99999999999T", "1,5G", True, 1.5],
)
def test_what_is_no_size_is_refused_with_the_text(text: str):
    with refuses(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("auto", "auto"), ("AUTO", "auto"), ("75%", "75%"), ("2G", 2 << 30), (1000, 1000)],
)
def test_a_budget_is_bytes_unless_it_depends_on_the_machine(given: Any, kept: Any):
    assert LoadSettings(model=Path("m"), memory_budget=given).memory_budget == kept
    assert LoadSettings(model=Path("m"), gpu_memory_budget=given).gpu_memory_budget == kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modle": "m"}, "unknown setting 'modle'; did you mean 'model'?"),
        ({}, "--model is missing"),
        ({"model": "m", "ctx_size": -1}, "--ctx-size -1: it must be greater than or equal to 0"),
        ({"model": "m", "memory_budget": "150%"}, "at most 100%"),
        (
            {"model": "m", "gpu_memory_budget": "150%"},
            "gpu-memory-budget = 150% in a --config file: at most 100%",
        ),
        (
            {"model": "m", "gpu_memory_budget": "1G", "provider": "cpu"},
            "gpu-memory-budget in a --config file has no effect with --provider cpu",
        ),
        ({"model": "m", "memory_budget": "much"}, "'much' is not a size"),
        ({"model": "m", "n_gpu_layers_draft": 4}, "needs a draft"),
        ({"model": "m", "threads": True}, "--threads: it must not be true"),
        ({"model": "m", "batch_size": 1 << 63}, "--batch-size 9223372036854775808: it must be"),
        ({"model": "m", "n_parallel": 0}, "--parallel 0: it must be greater than or equal to 1"),
    ],
)
def test_load_settings_refuse(settings: dict[str, Any], message: str):
    with pytest.raises(UsageError) as refusal:
        LoadSettings.model_validate(settings)
    assert message in in_flags(refusal.value.message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "--temp -0.1"),
        ({"temperature": float("nan")}, "--temp nan"),
        ({"top_p": 0}, "--top-p 0"),
        ({"max_tokens": -2}, "--n-predict -2"),
        ({"stop": ("",)}, "--stop: String should have at least 1 character"),
        ({"draft_max": 100_000}, "--draft-max 100000: it must be less than or equal to 1024"),
        ({"repeat_last_n": 1 << 63}, "repeat-last-n = 9223372036854775808 in a"),
        ({"logit_bias": ["15043"]}, "in a --config file: write a token's id and its bias like"),
        ({"logit_bias": {7: float("inf")}}, "less than or equal to 10000"),
        (
            {"fallback": "fix"},
            "fallback = fix in a --config file: it must be 'marginal', 'llmcad'",
        ),
    ],
)
def test_generate_settings_refuse(settings: dict[str, Any], message: str):
    with pytest.raises(UsageError) as refusal:
        GenerateSettings.model_validate(settings)
    assert message in in_flags(refusal.value.message)


def test_every_rule_of_the_engine_can_be_named():
    fields = Speculation.model_fields
    assert {*get_args(fields["pacer"].annotation)} == {*PACERS}
    assert {*get_args(fields["fallback"].annotation)} == {"marginal", *STOP_RULES}


def test_defaults_are_those_of_the_sampler():
    ours, sampler = GenerateSettings(), SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"):
        assert getattr(ours, name) == getattr(sampler, name)


GIVEN = {
    "pacer": "llmcad",
    "fallback": "fixed",
    "draft_max": "5",
    "lookup": True,
    "no_overlap": True,
}


def test_settings_of_the_engine_are_inherited_and_passed_on_by_no_list_of_names():
    """A setting added to Speculation is a key of files, and the engine's."""
    assert GIVEN.keys() == {*Speculation.model_fields}
    assert EngineSettings.of(GenerateSettings()) == EngineSettings()


@pytest.mark.parametrize("name", GIVEN)
def test_a_setting_of_the_engine_is_a_key_and_reaches_it(name: str, tmp_path: Path):
    value = GIVEN[name]
    told = "true" if value is True else f'"{value}"'
    assert read_config(write(tmp_path, f"{key_of(name)} = {told}\n")) == {name: value}
    given = GenerateSettings.model_validate({name: value})
    assert getattr(EngineSettings.of(given), name) == getattr(given, name) != DEFAULTS[name]


DEFAULTS = {name: getattr(EngineSettings(), name) for name in GIVEN}


def test_a_pinned_number_of_guesses_reaches_the_engine():
    pinned = EngineSettings.of(GenerateSettings(draft_max=USUAL_DRAFT_MAX))
    assert pinned == EngineSettings(pins_draft_max=True)


@pytest.mark.parametrize(
    ("given", "biases"),
    [
        (["15043+1"], {15043: 1.0}),
        (["15043-1.5", "7+.5"], {15043: -1.5, 7: 0.5}),
        ("15043-inf", {15043: -math.inf}),
        ({"15043": 2}, {15043: 2.0}),
        ({7: -math.inf}, {7: -math.inf}),
    ],
)
def test_biases_are_written_as_in_llama_cpp_or_as_a_table(given: Any, biases: dict[int, float]):
    assert GenerateSettings(logit_bias=given).logit_bias == biases


def test_in_python_arguments_have_their_own_names():
    with refuses(UsageError):
        SamplingParams(temperature=-1)


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_a_file_takes_the_names_of_flags_and_of_settings(tmp_path: Path):
    path = write(tmp_path, 'n-predict = 5\ntemperature = 0.5\nctx_size = 8\nstop = ["a", "b"]\n')
    assert read_config(path) == {
        "max_tokens": 5,
        "temperature": 0.5,
        "ctx_size": 8,
        "stop": ["a", "b"],
    }


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path):
    path = write(tmp_path, 'model = "big.gguf"\nmodel-draft = "/models/small.gguf"\n')
    assert read_config(path) == {
        "model": tmp_path / "big.gguf",
        "draft": Path("/models/small.gguf"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pacre = 1", "unknown key 'pacre'; did you mean 'pacer'?"),
        ("temp = 1\ntemperature = 1", "given twice"),
        ("temp = ", "not TOML"),
        ("[load]\nctx-size = 1", "unknown key 'load'"),
        ("verbose = 1", "unknown key 'verbose': keys are settings of models, texts and the server"),
        ("ctx-size = " + "[" * 100_000, "not TOML"),
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refusal:
        read_config(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("of", "settings", "message"),
    [
        (LoadSettings, {"ctx_size": -4}, "ctx-size = -4 in t.toml: it must be greater than or"),
        (LoadSettings, {"threads": True}, "threads = true in t.toml: it must not be true"),
        (LoadSettings, {"memory_budget": -1}, "memory-budget = -1 in t.toml: -1 is not a size"),
        (LoadSettings, {"memory_budget": "150%"}, "memory-budget = 150% in t.toml: at most 100%"),
        (LoadSettings, {"n_gpu_layers_draft": 1}, "n-gpu-layers-draft in t.toml needs a draft"),
        (
            GenerateSettings,
            {"pacer": "llmcat"},
            "pacer = llmcat in t.toml: it must be 'best-first' or 'llmcad'",
        ),
        (GenerateSettings, {"temperature": -1}, "temp = -1 in t.toml"),
        (
            GenerateSettings,
            {"stop": [""]},
            "stop in t.toml: String should have",
        ),
    ],
)
def test_what_a_file_says_is_refused_by_file_and_key(
    of: type[LoadSettings | GenerateSettings], settings: dict[str, Any], message: str
):
    given = settings | ({"model": "m"} if of is LoadSettings else {})
    with pytest.raises(UsageError) as refusal:
        of.model_validate(given)
    assert message in in_flags(refusal.value.message, Path("t.toml"), settings)
