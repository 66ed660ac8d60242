"""`--help`: settings describe themselves, once for the command line, Python and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from edgespec.bench.bench_settings import BenchSettings
from edgespec.cli.flags import parser
from edgespec.settings.base import Settings
from edgespec.settings.config import (
    DEFAULT_CTX_SIZE,
    USUAL_DRAFT_MAX,
    GenerateSettings,
    LoadSettings,
    Sampling,
)


def flags() -> Iterator[tuple[str, argparse.Action]]:
    _, commands, of_models = parser._parsers()
    for name, command in (commands | of_models).items():
        yield from ((name, action) for action in command._actions if action.option_strings)


def test_every_flag_has_a_help_text() -> None:
    assert not [(name, action.option_strings) for name, action in flags() if not action.help]


@pytest.mark.parametrize("settings", [GenerateSettings, BenchSettings])
def test_settings_are_described_in_whole_sentences(settings: type[Settings]) -> None:
    for name in settings.model_fields.keys() - {"no_draft", "acceptance"}:
        assert settings.meaning(name).endswith("."), name


def test_a_setting_is_described_where_it_is_inherited_from() -> None:
    for name in Sampling.model_fields:
        assert GenerateSettings.meaning(name) == Sampling.meaning(name) != ""


def test_descriptions_name_the_numbers_that_hold() -> None:
    assert f"with {DEFAULT_CTX_SIZE}," in LoadSettings.meaning("ctx_size")
    assert f"{USUAL_DRAFT_MAX} where" in GenerateSettings.meaning("draft_max")
