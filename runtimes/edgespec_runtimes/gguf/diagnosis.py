"""The build of llama.cpp and what it can use, for `edgespec doctor`. Loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from edgespec.errors import EdgespecError
from edgespec.ports.findings import Finding
from edgespec_runtimes.gguf.llama import ggml, gpu, loading, rpc


def diagnose() -> Sequence[Finding]:
    try:
        packing = loading.packing()
    except EdgespecError as error:
        return [Finding("libraries", "llama-cpp-python", str(error), "problem")]
    built_with = ", ".join(loading.cpu_features())
    library = f"{version('llama-cpp-python')}, built with {built_with or 'no extensions'}"
    names = [ggml.device_name(device) for device in gpu.find_all()]
    if names:
        has = f"can put layers on {', '.join(names)} with -ngl and -ngld"
        found = Finding("gpu", "llama.cpp", has)
    else:
        found = Finding(
            "gpu",
            "llama.cpp",
            "finds no GPU that this build can use",
            "note",
            "where there is a GPU, install a build of llama-cpp-python that supports it",
        )
    if rpc.is_supported():
        servers = Finding("gpu", "RPC servers", "can hold layers of a target, with --rpc")
    else:
        servers = Finding("gpu", "RPC servers", "cannot be used", "note", rpc.MISSING)
    if packing.allowed:
        packs = Finding("libraries", "packed weights", "are used where weights stay in memory")
    else:
        packs = Finding("libraries", "packed weights", packing.found, "note", packing.advice)
    return [Finding("libraries", "llama-cpp-python", library), packs, found, servers]
