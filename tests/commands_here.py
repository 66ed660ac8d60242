"""Commands run in this process, which has imported what a process of their own would import."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from edgespec.cli import command_line


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.stdout)
        return answer


def run_here(*arguments: object, stdin: str = "") -> Done:
    """Run `edgespec` with these arguments; neither output is a terminal."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        code = command_line.main([str(argument) for argument in arguments])
    return Done(code, stdout.getvalue(), stderr.getvalue())
