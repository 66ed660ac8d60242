"""Errors name settings in backticks as Python spells them; the command line says its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.cli import command_line
from edgespec.settings.base import in_flags


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("raise `ctx_size`", "raise --ctx-size"),
        ("`n_parallel=4` waits", "--parallel 4 waits"),
        ("`lookup=True` or `draft=None`", "lookup = true in a --config file or --no-draft"),
        ('`draft="self"` makes', "--model-draft self makes"),
        ("`edgespec serve` and `chat`", "`edgespec serve` and `chat`"),
    ],
)
def test_a_message_is_told_in_flags(said: str, told: str) -> None:
    assert in_flags(said) == told


def test_a_setting_of_a_file_is_told_by_its_key() -> None:
    said = "`ctx_size=-4`: `lookup=True` needs `draft`"
    told = in_flags(said, Path("s.toml"), {"ctx_size", "lookup"})
    assert told == "ctx-size = -4 in s.toml: lookup = true in s.toml needs --model-draft"


def test_the_command_line_reads_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["plan", "-m", "target", "--memory-budget", "20MiB"]) == 4
    assert "raise --memory-budget or lower --ctx-size" in capsys.readouterr().err
