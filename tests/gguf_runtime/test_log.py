"""llama.cpp's log belongs to the process: edgespec reads it and leaves it as it was."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.models.embedded import embedded_pair
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.llama import abi, loading, log
from edgespec_runtimes.gguf.llama.bindings import lib

SHAPE = contexts.ContextShape(n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1)


@lib.llama_log_callback
def _theirs(level: int, text: bytes, data: Any) -> None:
    pass


def hook() -> int | None:
    callback, data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    return ctypes.cast(callback, ctypes.c_void_p).value


@pytest.fixture
def model() -> Iterator[loading.Model]:
    opened = loading.load_sizes_only(embedded_pair().target)
    yield opened
    opened.close()


def test_sizes_are_known_although_the_application_has_taken_the_log(model: loading.Model) -> None:
    """They were 0 then, and the budget was planned without a KV cache."""
    usual = contexts.context_sizes(model, SHAPE)
    before = hook()
    lib.llama_log_set(_theirs, None)
    try:
        assert contexts.context_sizes(model, SHAPE) == usual
        assert usual.kv_bytes > 0
        assert hook() == ctypes.cast(_theirs, ctypes.c_void_p).value
    finally:
        lib.llama_log_set(ctypes.cast(before, lib.llama_log_callback), None)


def test_lines_of_each_node_are_kept_for_a_debugger_only(
    model: loading.Model, caplog: pytest.LogCaptureFixture
) -> None:
    """They took half of the time of a plan: tens of thousands, searched for sizes."""
    of_each_node = "llama_graph_n_input_tensors"
    with log.captured() as lines:
        contexts.context_sizes(model, SHAPE)
    assert lines and not any(line.startswith(of_each_node) for line in lines)
    with caplog.at_level(logging.DEBUG, "edgespec.llama_cpp"):
        contexts.context_sizes(model, SHAPE)
    assert of_each_node in caplog.text


def test_what_drivers_say_as_the_library_starts_is_no_output_of_a_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Vulkan's backend told of its devices on stderr, in every command."""
    level = 2

    def starting() -> None:
        abi.ggml().ggml_log_internal(level, b"ggml_vulkan: Found 1 Vulkan devices:\n")

    monkeypatch.setattr(lib, "llama_backend_init", starting)
    with caplog.at_level(logging.DEBUG, "edgespec.llama_cpp"):
        loading.start.__wrapped__()
    assert "ggml_vulkan: Found 1" in caplog.text


STARTING = """
import ctypes, sys
from pathlib import Path
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.imports import Import

def starting():
    if not told:
        told.append(True)
        base.ggml_log_internal(4, b"ggml_cuda_init: failed to initialize CUDA")
    return registry()

told, folder = [], Path(lib._base_path).resolve()
loaded = {line.split()[-1] for line in open("/proc/self/maps") if str(folder) in line}
base = ctypes.CDLL(next(path for path in loaded if "libggml-base" in path))
library = next(path for path in loaded if "libggml.so" in path)
registry = ctypes.CDLL(next(path for path in loaded if "libggml-cpu" in path)).ggml_backend_cpu_reg
registry.restype = ctypes.c_void_p
replaced = Import(library, ["ggml_backend_cpu_reg"], ctypes.CFUNCTYPE(ctypes.c_void_p)(starting))
replaced.replace()
from edgespec_runtimes.gguf import runtime
runtime.diagnose()
print(len(told))
"""


def _has_one_cpu_library() -> bool:
    return sys.platform == "linux" and abi.library_file("ggml-cpu").name.startswith("libggml-cpu.")


@pytest.mark.slow
@pytest.mark.skipif(not _has_one_cpu_library(), reason="backends are registered in another way")
def test_what_backends_say_while_they_are_registered_is_no_output_of_a_command() -> None:
    """CUDA's wrote that it found no device to stderr, whatever the command."""
    done = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"1\n", b"")
