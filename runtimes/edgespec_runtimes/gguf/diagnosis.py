"""The build of llama.cpp and what it can use, for `edgespec doctor`. Loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from edgespec.errors import EdgespecError
from edgespec.ports.findings import Finding
from edgespec_runtimes.gguf.llama import loading


def diagnose() -> Sequence[Finding]:
    try:
        packing = loading.packing()
    except EdgespecError as error:
        return [Finding("libraries", "llama-cpp-python", str(error), "problem")]
    built_with = ", ".join(loading.cpu_features())
    library = f"{version('llama-cpp-python')}, built with {built_with or 'no extensions'}"
    if loading.supports_gpu():
        gpu = Finding("gpu", "llama.cpp", "can put layers on a GPU with -ngl and -ngld")
    else:
        gpu = Finding(
            "gpu",
            "llama.cpp",
            "was built without GPU support",
            "note",
            "where there is a GPU, install a build of llama-cpp-python that supports it",
        )
    if packing.allowed:
        packs = Finding("libraries", "packed weights", "are used where weights stay in memory")
    else:
        packs = Finding("libraries", "packed weights", packing.found, "note", packing.advice)
    return [Finding("libraries", "llama-cpp-python", library), packs, gpu]
