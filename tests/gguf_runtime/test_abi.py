"""The libraries that are called are those that llama.cpp computes with."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec_runtimes.gguf.llama import abi, ggml


def test_the_cpu_code_that_is_called_is_that_of_llama_cpps_devices() -> None:
    """Wheels hold a second copy of each library, which knew nothing of packed weights."""
    called = abi.library("ggml-cpu")
    called.ggml_backend_cpu_reg.restype = ctypes.c_void_p
    device = ggml.device_of(ggml.CPU)
    used = abi.library("ggml-base")
    used.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    registry = used.ggml_backend_dev_backend_reg(ctypes.c_void_p(device))
    assert called.ggml_backend_cpu_reg() == registry


COUNT = """
import re
from pathlib import Path
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import abi, ggml, gpu
runtime.diagnose()
abi.library("ggml-cpu"), abi.ggml(), ggml.gpus()
maps = Path("/proc/self/maps").read_text()
print(*sorted({path for path in re.findall(r"/\\S*lib(?:ggml|llama)\\S*", maps)}))
"""


def mapped_libraries(**environ: str) -> list[Path]:
    """llama.cpp's libraries in a process that used them."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=os.environ | environ, check=True, stdout=subprocess.PIPE
    )
    return [Path(name) for name in done.stdout.decode().split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_no_library_is_mapped_twice() -> None:
    names = [path.name.split(".")[0] for path in mapped_libraries()]
    assert len({*names}) == len(names)
    assert sum(name.startswith("libggml-cpu") for name in names) == 1


ANOTHER = """
import ctypes
from edgespec_runtimes.gguf.llama import abi
used = abi.library_file("ggml-base")
for copy in used.parent.glob("libggml-base.*"):
    ctypes.CDLL(str(copy))
print(used, abi.library_file("ggml-base"))
"""


@pytest.mark.slow
def test_a_copy_that_somebody_loads_later_is_not_taken_for_the_one_in_use() -> None:
    """A test had loaded one, and the weights of models loaded after it had no huge pages."""
    done = subprocess.run([sys.executable, "-c", ANOTHER], check=True, stdout=subprocess.PIPE)
    used, then = done.stdout.decode().split()
    assert then == used


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_libraries_elsewhere_are_followed(tmp_path: Path) -> None:
    """llama-cpp-python loads those that LLAMA_CPP_LIB_PATH names; two registries knew half each."""
    elsewhere = tmp_path / "lib"
    shutil.copytree(Path(abi.library_path()).parent, elsewhere)
    found = mapped_libraries(LLAMA_CPP_LIB_PATH=str(elsewhere))
    assert {path.parent for path in found} == {elsewhere}


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [None, pytest.param(b"no library", marks=pytest.mark.slow)],
    ids=["missing", "broken"],
)
def test_a_library_that_cannot_be_loaded_is_one_sentence(
    content: bytes | None, tmp_path: Path
) -> None:
    """Such as a build for a GPU where cuBLAS is missing."""
    if content is not None:
        for ending in ("so", "dylib"):
            (tmp_path / f"libllama.{ending}").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "edgespec", "generate", "-p", "x", "-n", "1"],
        env=os.environ | {"LLAMA_CPP_LIB_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.count("edgespec: error:") == 1 and str(tmp_path) in done.stderr
    assert "unexpected" not in done.stderr and "Traceback" not in done.stderr
