"""Processes of our own import nothing from the current folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import edgespec
import edgespec_runtimes
from edgespec.concurrency.interpreter import python

PACKAGES = (Path(edgespec.__file__).parent, Path(edgespec_runtimes.__file__).parent)
ELSEWHERE = {"interpreter.py", "extras.py"}
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
