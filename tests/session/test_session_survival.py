"""No order of close, cancel, stream, encode and drop, from any thread, ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")
pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

PROGRAM = Path(__file__).parents[1] / "session_survival.py"
PAIRS = ["gguf+gguf", "onnx+gguf", "onnx+onnx"]
"""Target and draft."""


def survive(pair: str, folder: Path, what: str) -> str:
    """Output of the program; it has to end by itself, with exit code 0."""
    done = subprocess.run(
        [sys.executable, "-W", "default", str(PROGRAM), pair, str(folder), what],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_a_process_may_end_with_everything_open(pair: str, tmp_path: Path) -> None:
    survive(pair, tmp_path, "open")


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS)
def test_six_hundred_steps_of_any_kind_are_survived(pair: str, tmp_path: Path) -> None:
    assert "done" in survive(pair, tmp_path, "600")
