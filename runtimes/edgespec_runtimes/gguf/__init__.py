"""GGUF models on llama.cpp through llama-cpp-python: options, and the lazily imported runtime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgespec_runtimes.gguf.options import GgufOptions

if TYPE_CHECKING:
    from edgespec_runtimes.gguf.entry import runtime as runtime

OPTIONS = GgufOptions


def __getattr__(name: str) -> object:
    if name != "runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from edgespec_runtimes.gguf.entry import runtime
    except (OSError, RuntimeError) as error:  # from llama_cpp, if its library cannot be loaded
        folder = os.environ.get("LLAMA_CPP_LIB_PATH")
        elsewhere = f"; LLAMA_CPP_LIB_PATH names the folder {folder}" if folder else ""
        raise ImportError(f"{error}{elsewhere}") from error
    globals()["runtime"] = runtime
    return runtime
