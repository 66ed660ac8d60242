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
from sentences import hold_sentence, refuses


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
    ("of", "settings"),
    [
        (LoadSettings, {"modle": "m"}),
        (LoadSettings, {}),
        (LoadSettings, {"model": "m", "ctx_size": -1}),
        (LoadSettings, {"model": "m", "memory_budget": "150%"}),
        (LoadSettings, {"model": "m", "gpu_memory_budget": "150%"}),
        (LoadSettings, {"model": "m", "gpu_memory_budget": "1G", "provider": "cpu"}),
        (LoadSettings, {"model": "m", "memory_budget": "much"}),
        (LoadSettings, {"model": "m", "n_gpu_layers_draft": 4}),
        (LoadSettings, {"model": "m", "threads": True}),
        (LoadSettings, {"model": "m", "batch_size": 1 << 63}),
        (LoadSettings, {"model": "m", "n_parallel": 0}),
        (LoadSettings, {"model": "m", "memory_budget": -1}),
        (GenerateSettings, {"pacer": "llmcat"}),
        (GenerateSettings, {"temperature": -0.1}),
        (GenerateSettings, {"temperature": float("nan")}),
        (GenerateSettings, {"top_p": 0}),
        (GenerateSettings, {"max_tokens": -2}),
        (GenerateSettings, {"stop": ("",)}),
        (GenerateSettings, {"draft_max": 100_000}),
        (GenerateSettings, {"repeat_last_n": 1 << 63}),
        (GenerateSettings, {"logit_bias": ["15043"]}),
        (GenerateSettings, {"logit_bias": {7: float("inf")}}),
        (GenerateSettings, {"fallback": "fix"}),
    ],
)
def test_settings_refuse_by_flag_and_by_key_of_a_file(
    of: type[LoadSettings | GenerateSettings], settings: dict[str, Any]
):
    with pytest.raises(UsageError) as refusal:
        of.model_validate(settings)
    hold_sentence(in_flags(refusal.value.message))
    hold_sentence(in_flags(refusal.value.message, Path("t.toml"), settings))


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
    "text",
    [
        "pacre = 1",
        "temp = 1\ntemperature = 1",
        "temp = ",
        "[load]\nctx-size = 1",
        "verbose = 1",
        "ctx-size = " + "[" * 100_000,
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str):
    path = write(tmp_path, text)
    with refuses(UsageError):
        read_config(path)
