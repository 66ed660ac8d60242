"""With which flags `make` builds llama.cpp."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ACCEPTS, REFUSES = "cat > /dev/null", 'case "$*" in *-mno-amx*) exit 1;; esac; cat > /dev/null'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def install_command(folder: Path, machine: str, cc: str, cxx: str, *arguments: str) -> str:
    """Commands that `make` would run on such a machine with such compilers; nothing is run."""
    for name, script in (("uname", f"echo {machine}"), ("cc", cc), ("c++", cxx)):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in {"CC", "CXX"}}
    printed = subprocess.run(
        ["make", "-n", f"VENV={folder}/venv", *arguments, "demo"],
        cwd=ROOT,
        env=environ | {"PATH": f"{folder}:{environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = printed.splitlines()
    return next(line for line in lines if "pip install" in line and "[gguf]" in line)


def test_llama_cpp_is_built_without_amx(tmp_path: Path):
    command = install_command(tmp_path, "x86_64", ACCEPTS, ACCEPTS)
    assert command.count("-mno-amx-int8") == 2  # for C and for C++


def test_llama_cpp_is_built_with_rpc(tmp_path: Path):
    assert "-DGGML_RPC=ON" in install_command(tmp_path, "aarch64", REFUSES, REFUSES)


@pytest.mark.parametrize(("machine", "is_taken"), [("x86_64", True), ("aarch64", False)])
def test_a_wheel_for_this_machine_is_taken_and_needs_no_compiler(
    machine: str, is_taken: bool, tmp_path: Path
):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "llama_cpp_python-0.3.36-py3-none-manylinux_2_34_x86_64.whl").touch()
    command = install_command(tmp_path, machine, REFUSES, REFUSES, f"WHEELS={wheels}")
    assert (f"--find-links {wheels}" in command) == is_taken


@pytest.mark.parametrize(
    ("machine", "cc", "cxx"),
    [
        ("aarch64", ACCEPTS, ACCEPTS),
        ("arm64", ACCEPTS, ACCEPTS),
        ("x86_64", REFUSES, ACCEPTS),
        ("x86_64", ACCEPTS, REFUSES),
    ],
)
def test_other_processors_and_compilers_are_given_no_flag_that_they_do_not_know(
    machine: str, cc: str, cxx: str, tmp_path: Path
):
    assert "-mno-amx" not in install_command(tmp_path, machine, cc, cxx)


def test_the_script_for_a_cuda_device_names_tests_that_exist():
    script = (ROOT / "tests/on_cuda.sh").read_text()
    patterns = re.findall(r"tests/\S+\.py", script)
    named = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(patterns)}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(named) == 6
    assert [name for name in named if not (ROOT / name).exists()] == []
