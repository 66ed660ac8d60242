"""The script that tests every level of instructions: what it unpacks and reports."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from on_every_processor import counted, unpack

NAMES = ("libllama.so", "libggml-cpu-x64.so", "libggml-cpu-haswell.so", "libgomp.so.1")


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("...\n37 passed, 5 skipped in 90.12s (0:01:30)\n", "37 passed, 5 skipped"),
        (
            "F.\nFAILED a.py::b - it came 2 in 3s\n1 failed, 1 passed in 3.00s\n",
            "1 failed, 1 passed",
        ),
        ("....s...Timeout (0:15:00)!\nThread 0x00007f (most recent call first):\n", ""),
    ],
    ids=["passed", "failed", "ended early"],
)
def test_counts_are_those_of_a_run_that_came_to_its_end(output: str, counts: str) -> None:
    assert counted(output) == counts


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "one.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in NAMES:
            archive.writestr(f"llama_cpp/lib/{name}", name)
    return path


def test_a_level_has_its_own_library_for_cpus_and_all_others(wheel: Path, tmp_path: Path) -> None:
    assert sorted(unpack(wheel, tmp_path)) == ["haswell", "x64"]
    assert {path.name for path in (tmp_path / "x64").iterdir()} == {*NAMES} - {
        "libggml-cpu-haswell.so"
    }


def test_libraries_that_another_run_has_open_are_not_written_to(
    wheel: Path, tmp_path: Path
) -> None:
    unpack(wheel, tmp_path)
    with (tmp_path / "x64/libllama.so").open("rb") as opened:
        unpack(wheel, tmp_path)
        assert os.fstat(opened.fileno()).st_ino != Path(opened.name).stat().st_ino
