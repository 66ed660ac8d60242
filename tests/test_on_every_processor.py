"""What the script that tests every level of instructions unpacks and reports."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from on_every_processor import counted, unpack


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


def test_a_level_has_its_own_library_for_cpus_and_all_others(tmp_path: Path) -> None:
    names = ("libllama.so", "libggml-cpu-x64.so", "libggml-cpu-haswell.so", "libgomp.so.1")
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(f"llama_cpp/lib/{name}", name)
    assert sorted(unpack(wheel, tmp_path)) == ["haswell", "x64"]
    assert {path.name for path in (tmp_path / "x64").iterdir()} == {*names} - {names[2]}
