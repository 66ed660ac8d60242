"""GGUF models on llama.cpp, through llama-cpp-python."""

from edgespec_runtimes.gguf.runtime import GgufRuntime

runtime = GgufRuntime()
