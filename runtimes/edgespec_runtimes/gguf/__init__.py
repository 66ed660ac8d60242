"""GGUF models on llama.cpp, by llama-cpp-python: options, and the runtime when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec_runtimes.gguf.options import GgufOptions

if TYPE_CHECKING:
    from edgespec_runtimes.gguf.entry import runtime as runtime

OPTIONS = GgufOptions


def __getattr__(name: str) -> object:
    if name != "runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgespec_runtimes.gguf.entry import runtime

    return runtime
