"""onnxruntime tells Microsoft of its use unless it is told not to; edgespec tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from onnx_files import write_llama

SWITCH = "ORT_DISABLE_TELEMETRY"
USE = "from edgespec_runtimes.onnx import runtime; runtime.diagnose()"
MEASURE = """
import sys
from pathlib import Path
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.prepare import measuring
from onnx_models import request
measuring.MEASURED_BYTES = 0
prepared = runtime.prepare(request(Path(sys.argv[1])))
print(len(prepared._measured.sizes))
prepared.close()
"""
"""Measures a model in a process of its own, and prints the number of its pieces."""


def said_at(home: Path, program: str, *arguments: str) -> str:
    """Output of a program that inherits no switch."""
    inherited = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=inherited
        | {"HOME": str(home), "XDG_CACHE_HOME": str(home), "TMPDIR": str(home)}
        | {"PYTHONPATH": str(Path(__file__).parents[1])},
        check=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout.decode().strip()


def test_nothing_is_told_and_no_device_gets_a_number(tmp_path: Path) -> None:
    said_at(tmp_path, USE)
    assert not [*tmp_path.rglob("deviceid*")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are measured on Linux")
def test_nothing_is_told_while_a_model_is_measured(tmp_path: Path) -> None:
    """The process that measures had started onnxruntime with its telemetry."""
    model = write_llama(tmp_path / "packed", hidden=128, ffn=512, vocab=4096, bits=4)
    home = tmp_path / "home"
    home.mkdir()
    assert int(said_at(home, MEASURE, str(model))) > 0
    assert {path.name for path in home.iterdir()} == {"edgespec"}
