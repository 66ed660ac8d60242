"""Help fits into terminals of 80 and 120 columns, and examples stay commands."""

from __future__ import annotations

import re

import pytest

from edgespec.cli.flags import parser

_, COMMANDS, OF_MODELS = parser._parsers()
ALL = COMMANDS | {f"models {name}": command for name, command in OF_MODELS.items()}
BROKEN = re.compile(r" \\\n +")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ALL)
def test_help_fits(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert not [line for line in ALL[name].format_help().splitlines() if len(line) > width]


@pytest.mark.parametrize("name", ALL)
def test_examples_stay_what_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are the same at every width, once lines that a shell joins are joined."""
    words = []
    for width in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = BROKEN.sub(" ", ALL[name].format_help().partition("examples:")[2])
        words.append(shown.split())
    assert words[0] == words[1] == words[2]


def test_a_command_is_broken_between_flags_with_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = ALL["generate"].format_help()
    assert " -p 'Hello'" in shown and "-n 200" in shown and "\\\n      " in shown


def test_a_list_keeps_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = ALL["bench"].format_help().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  mmap  "))
    assert lines[at + 1].startswith(" " * lines[at].index("the model"))


def test_each_command_stands_beside_its_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two longest had a line of their own."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = parser._parsers(None)[0].format_help()
    assert all(
        re.search(rf"^ +{name} +{re.escape(text)}$", shown, re.MULTILINE)
        for name, text in parser.COMMANDS.items()
    )


def test_the_greeting_fits() -> None:
    assert max(map(len, parser.GREETING.splitlines())) <= 80


def test_switches_show_their_defaults() -> None:
    shown = " ".join(ALL["generate"].format_help().split())
    assert "do not draft while the target verifies (default: off)" in shown
    assert (
        "(default: beside a draft model, and without one if the target's weights are paged)"
        in shown
    )


def test_what_a_shift_keeps_has_one_default() -> None:
    shown = " ".join(ALL["generate"].format_help().split())
    assert "if that is more than 4; -1 keeps the prompt (default: 4)" in shown
