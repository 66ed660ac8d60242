"""Processes of our own import nothing from the current folder; their exit codes in words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import edgespec
import edgespec_runtimes
from edgespec.concurrency.own_processes import exit_reason, python

PACKAGES = (Path(edgespec.__file__).parent, Path(edgespec_runtimes.__file__).parent)
ELSEWHERE = {"own_processes.py", "extras.py"}
"""Sources that may name the interpreter: its own, and one that shows a command for the user."""


def test_a_file_here_takes_no_modules_place(tmp_path: Path) -> None:
    """A trial of a model ran `pydantic.py` of the folder in which the command was given."""
    for name in ("pydantic", "json"):
        (tmp_path / f"{name}.py").write_text("print('planted')")
    for arguments in (("-c", "import json, edgespec.errors"), ("-m", "json.tool", "--help")):
        done = subprocess.run(python(*arguments), cwd=tmp_path, check=True, capture_output=True)
        assert b"planted" not in done.stdout


def test_no_process_is_started_otherwise() -> None:
    started = {
        path.name
        for package in PACKAGES
        for path in package.rglob("*.py")
        if re.search(r"\bsys\.executable\b", path.read_text(encoding="utf-8"))
    }
    assert started == ELSEWHERE


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [(-11, "SIGSEGV"), (-4, "SIGILL"), (139, "SIGSEGV"), (-6, "SIGABRT")],
)
def test_a_crash_has_a_name(exit_code: int, name: str):
    assert f"native code crashed, {name}" in exit_reason(exit_code)


@pytest.mark.parametrize("exit_code", [0, 1, -9, -15, 137, 255, -1000])
def test_other_ends_are_no_crashes(exit_code: int):
    assert "crashed" not in exit_reason(exit_code)


def test_a_killed_process_may_have_lacked_memory():
    assert "where memory is short" in exit_reason(-9)


def test_an_exit_code_is_told_with_the_last_words():
    assert exit_reason(9, "oh") == "exit code 9: oh"


def test_an_end_from_outside_is_no_crash():
    assert exit_reason(-15) == "ended by SIGTERM"
