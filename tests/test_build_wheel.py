"""Facts that the script that builds wheels reads from CMake and from libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/build_wheel.py"


@pytest.fixture(scope="module")
def build_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wheel", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_compiler_of_a_toolchain_file_is_found_although_the_cache_lacks_it(
    build_wheel: ModuleType, tmp_path: Path
) -> None:
    described = tmp_path / "CMakeFiles/4.4.4/CMakeCCompiler.cmake"
    described.parent.mkdir(parents=True)
    described.write_text(
        'set(CMAKE_C_COMPILER "/usr/bin/aarch64-linux-gnu-gcc")\n'
        'set(CMAKE_C_COMPILER_ARG1 "")\nset(CMAKE_C_COMPILER_ID "GNU")\n'
    )
    (tmp_path / "CMakeCache.txt").write_text("CMAKE_STRIP:FILEPATH=/usr/bin/strip\n")
    assert build_wheel.compiler(tmp_path) == "/usr/bin/aarch64-linux-gnu-gcc"
    assert build_wheel.cached(tmp_path, "CMAKE_STRIP") == "/usr/bin/strip"


@pytest.mark.parametrize(("machine", "name"), [(0x3E, "x86_64"), (0xB7, "aarch64")])
def test_a_wheel_asks_for_the_newest_glibc_that_a_library_calls(
    build_wheel: ModuleType, tmp_path: Path, machine: int, name: str
) -> None:
    elf = b"\x7fELF".ljust(18, b"\0") + bytes([machine])
    (tmp_path / "libone.so").write_bytes(elf + b"\0GLIBC_2.9\0GLIBC_2.17\0")
    (tmp_path / "libtwo.so").write_bytes(elf + b"\0GLIBC_2.34\0GLIBCXX_3.4.30\0")
    assert build_wheel.platform_tag(tmp_path) == f"manylinux_2_34_{name}"


def test_a_source_that_has_changed_is_refused(build_wheel: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "source.cpp").write_text("int main() {}\n")
    with pytest.raises(SystemExit, match="this version differs"):
        build_wheel.change(tmp_path / "source.cpp", "push_back", "")
