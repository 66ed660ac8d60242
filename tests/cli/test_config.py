"""Sizes, settings and TOML files: what is taken, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from edgespec.config import FallbackName, GenerateSettings, LoadSettings, PacerName, read_config
from edgespec.engine.acceptance import ACCEPTANCE_RULES
from edgespec.engine.fallback import FALLBACKS
from edgespec.engine.pacer import PACERS
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.units import parse_size


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
    "text", ["", "lots", "-1G", "1X", "G", "0", "0M", "1e9", "nan", "99999999999T", "1,5G", True]
)
def test_what_is_no_size_is_refused_with_the_text(text: str):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_a_percentage_needs_a_whole():
    with pytest.raises(UsageError, match="percentage"):
        parse_size("75%")


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
        ({"model": "m", "threads": 0}, "--threads 0"),
        ({"model": "m", "memory_budget": "150%"}, "no more than 100%"),
        ({"model": "m", "gpu_memory_budget": "150%"}, "--gpu-memory-budget 150%: there is no more"),
        (
            {"model": "m", "gpu_memory_budget": "1G", "provider": "cpu"},
            "--gpu-memory-budget has no effect with --provider cpu",
        ),
        ({"model": "m", "memory_budget": "much"}, "'much' is not a size"),
        ({"model": "m", "cache_type_k": "q9_0"}, "did you mean 'q8_0'?"),
        ({"model": "m", "n_gpu_layers_draft": 4}, "needs a draft"),
        ({"model": "m", "cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
    ],
)
def test_load_settings_refuse(settings: dict[str, Any], message: str):
    with pytest.raises(UsageError) as refusal:
        LoadSettings(**settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "--temp -0.1"),
        ({"temperature": float("nan")}, "--temp nan"),
        ({"top_p": 0}, "--top-p 0"),
        ({"top_p": 1.5}, "--top-p 1.5"),
        ({"min_p": 2}, "--min-p 2"),
        ({"top_k": -1}, "--top-k -1"),
        ({"repeat_penalty": 0}, "--repeat-penalty 0"),
        ({"max_tokens": -2}, "--n-predict -2"),
        ({"max_tokens": "many"}, "--n-predict many"),
        ({"seed": -1}, "--seed -1"),
        ({"stop": ("",)}, "--stop is empty"),
        ({"draft_max": 0}, "--draft-max 0"),
        ({"pacer": "llmcat"}, "did you mean 'llmcad'?"),
        ({"no_draft": True, "pacer": "llmcad"}, "--pacer has no effect without a draft"),
        ({"no_draft": True, "no_overlap": True}, "--no-overlap has no effect without a draft"),
    ],
)
def test_generate_settings_refuse(settings: dict[str, Any], message: str):
    with pytest.raises(UsageError) as refusal:
        GenerateSettings(**settings)
    assert message in str(refusal.value)


def test_numbers_may_come_as_text():
    """Flags do."""
    settings = GenerateSettings.model_validate({"temperature": "0.8", "max_tokens": "-1"})
    assert (settings.temperature, settings.limit) == (0.8, None)


def test_every_rule_of_the_engine_can_be_named():
    assert set(get_args(PacerName)) == set(PACERS)
    assert set(get_args(FallbackName)) == set(FALLBACKS)
    assert EngineSettings().acceptance in ACCEPTANCE_RULES


def test_defaults_are_those_of_the_engine_and_the_sampler():
    ours, engine, sampler = GenerateSettings(), EngineSettings(), SamplingParams()
    assert (ours.pacer, ours.fallback, ours.draft_max, not ours.no_overlap) == (
        engine.pacer,
        engine.fallback,
        engine.draft_max,
        engine.overlap,
    )
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"):
        assert getattr(ours, name) == getattr(sampler, name)


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
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refusal:
        read_config(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, message in (("binary", "not TOML"), ("missing", "No such file"), ("", "directory")):
        with pytest.raises(UsageError, match=message):
            read_config(tmp_path / name)
