"""`--help`: settings describe themselves, once for the command line, Python and files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from edgespec.cli.flags import parser
from edgespec.cli.flags.parser import parse
from edgespec.settings.base import key_of
from edgespec.settings.config import GenerateSettings, ServerSettings


def flags() -> Iterator[tuple[str, argparse.Action]]:
    _, commands, of_models = parser._parsers()
    for name, command in (commands | of_models).items():
        yield from ((name, action) for action in command._actions if action.option_strings)


def test_every_flag_has_a_help_text() -> None:
    assert not [(name, action.option_strings) for name, action in flags() if not action.help]


def test_there_are_few_flags() -> None:
    """Others are keys of a --config file."""
    found = [(name, max(action.option_strings, key=len)) for name, action in flags()]
    assert len({flag for _, flag in found}) <= 54
    assert sum(name == "generate" for name, _ in found) <= 37


def test_help_shows_the_flags_of_every_day_and_help_all_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parser.parse(["generate", flag])
        shown[flag] = capsys.readouterr().out
    assert "--memory-budget" in shown["--help"] and "--repeat-penalty" not in shown["--help"]
    assert len(re.findall(r"^  -", shown["--help"], re.MULTILINE)) <= 20
    everything = re.findall(r"^  (?:-\w+ [^-]*?, )?(--[\w-]+)", shown["--help-all"], re.MULTILINE)
    assert {
        flag
        for name, action in flags()
        if name == "generate"
        for flag in action.option_strings
        if flag.startswith("--")
    } <= {*everything, "--help"}
    keys = {key_of(name) for name in GenerateSettings.model_fields.keys() | ServerSettings.known()}
    assert not [
        key
        for key in keys
        if key not in shown["--help-all"].replace("--", "")
        and key not in ("host", "port", "api-key-file", "reasoning-budget", "allowed-host")
    ]


def test_llama_cpps_flags_of_files_are_taken() -> None:
    given = parse(["serve", "--chat-template-file", "a.jinja", "-c", "128"])
    assert given.chat_template == "@a.jinja"
    assert parse(["generate", "--json-schema-file", "a.json"]).json_schema == "@a.json"
