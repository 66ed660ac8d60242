"""onnxruntime tells Microsoft of its use unless it is told not to; edgespec tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

SWITCH = "ORT_DISABLE_TELEMETRY"
USE = """
import os
from edgespec_runtimes.onnx import runtime
runtime.diagnose()
print(os.environ.get("ORT_DISABLE_TELEMETRY"))
"""


def switch_after_use(home: Path, **environ: str) -> str:
    """The switch in a process that used onnxruntime."""
    inherited = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env=inherited | {"HOME": str(home), "XDG_CACHE_HOME": str(home)} | environ,
        check=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout.decode().strip()


def test_nothing_is_told_and_no_device_gets_a_number(tmp_path: Path) -> None:
    switch_after_use(tmp_path)
    assert not [*tmp_path.rglob("deviceid*")]


@pytest.mark.slow
def test_the_environment_of_an_application_stays_as_it_is(tmp_path: Path) -> None:
    assert switch_after_use(tmp_path) == "None"


@pytest.mark.slow
def test_who_wants_it_may_have_it(tmp_path: Path) -> None:
    assert switch_after_use(tmp_path, **{SWITCH: "0"}) == "0"
