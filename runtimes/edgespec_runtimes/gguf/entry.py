"""The runtime behind the entry point `gguf`.

Opens no model itself. Modules that only some commands need are imported late, because imports take
memory of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edgespec.errors import EdgespecError, ModelError, UsageError, setting
from edgespec.files.regular import open_regular
from edgespec.ports.baselines import Baselines
from edgespec.registry import Finding, ModelRequest, Runtime
from edgespec.values import ModelDetails
from edgespec_runtimes.gguf.file.architectures import turns_texts_into_vectors
from edgespec_runtimes.gguf.file.details import details_of, info_of
from edgespec_runtimes.gguf.file.header import (
    GgufFile,
    is_gguf,
    read_header,
)
from edgespec_runtimes.gguf.file.heads import N_LAYERS, has_layers, is_head, obstacle
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama import ggml, gpu, loading, rpc
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.own_draft.trimmed import PreparedTrimmed, is_trimmed, trimmed_shape
from edgespec_runtimes.gguf.prepared import PreparedGguf

if TYPE_CHECKING:
    from edgespec_runtimes.gguf.embedding_model import PreparedGgufEmbedder

HYPERPARAMETERS_BYTES = 1 << 20
"""Size of a file's beginning that has its hyperparameters, which precede the vocabulary."""


class GgufRuntime(Runtime):
    """The entry point `gguf`."""

    name = "gguf"
    lends = True

    def recognises(self, path: Path) -> bool:
        return is_gguf(path)

    def prepare(self, request: ModelRequest) -> PreparedGguf:
        options = GgufOptions.of(request.options)
        n_gpu_layers = options.gpu_layers_of(request.owner)
        on_servers = bool(options.servers_of(request.owner))
        if n_gpu_layers and not on_servers:
            if not (devices := gpu.find_all()):
                raise UsageError(
                    f"{n_gpu_layers} layers cannot go to a GPU: this build of llama.cpp finds none "
                    f"here; leave {setting.n_gpu_layers} and {setting.n_gpu_layers_draft} out, or "
                    "install a build for the GPU"
                )
            for device in devices:
                gpu.start(device)
        seconds: dict[str, float] = {}
        with request.phase("header and vocabulary", seconds):
            header = read_header(request.path)
            validate(header, request.owner == "draft")
            prepared = _prepared(request, header)
        prepared.seconds |= seconds
        return prepared

    @property
    def baselines(self) -> Baselines:
        from edgespec_runtimes.gguf import baselines

        return baselines

    def gpu(self) -> str | None:
        device = gpu.find()
        return ggml.device_name(device) if device else None

    def lend(
        self, host: str, port: int, budget_bytes: int | None, n_threads: int | None
    ) -> NoReturn:
        from edgespec_runtimes.gguf import lending

        lending.lend(host, port, budget_bytes, n_threads)

    def diagnose(self) -> Sequence[Finding]:
        try:
            is_packed = loading.packs()
        except EdgespecError as error:
            return [Finding("libraries", "llama-cpp-python", str(error), "problem")]
        built_with = ", ".join(loading.cpu_features())
        library = f"{version('llama-cpp-python')}, built with {built_with or 'no extensions'}"
        found = [Finding("libraries", "llama-cpp-python", library)]
        if is_packed:
            says = "are used where weights stay in memory"
            found.append(Finding("libraries", "packed weights", says))
        else:
            why, advice = "are not used: llama.cpp was built with AMX", loading.packing_advice()
            found.append(Finding("libraries", "packed weights", why, "note", advice))
        if names := ", ".join(map(ggml.device_name, gpu.find_all())):
            says = f"can put layers on {names} with -ngl and -ngld"
            found.append(Finding("gpu", "llama.cpp", says))
        else:
            why = "finds no GPU that this build can use"
            advice = "where there is a GPU, install a build of llama-cpp-python that supports it"
            found.append(Finding("gpu", "llama.cpp", why, "note", advice))
        if rpc.is_supported():
            says = "can hold layers of a target, with --rpc"
            found.append(Finding("gpu", "RPC servers", says))
        else:
            found.append(Finding("gpu", "RPC servers", "cannot be used", "note", rpc.MISSING))
        return found

    def embeds(self, path: Path) -> bool:
        return turns_texts_into_vectors(read_header(path))

    def prepare_embedder(self, request: ModelRequest) -> PreparedGgufEmbedder:
        from edgespec_runtimes.gguf.embedding_model import PreparedGgufEmbedder

        header = read_header(request.path)
        validate(header, embeds=True)
        return PreparedGgufEmbedder(request, header)

    def guesses_itself(self, path: Path) -> bool:
        try:
            with open_regular(path) as file:  # parsing the whole header would take long
                begin = file.read(HYPERPARAMETERS_BYTES)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
        return N_LAYERS.encode() in begin and obstacle(read_header(path)) is None

    def describe(self, path: Path) -> ModelDetails:
        header = read_header(path)
        validate(header, as_draft=True)
        details = details_of(header)
        if not is_trimmed(header):
            return details
        return replace(details, info=info_of(header, trimmed_shape(header).n_vocab))


def _prepared(request: ModelRequest, header: GgufFile) -> PreparedGguf:
    is_its_own_draft = request.target is not None and request.path.samefile(request.target)
    if is_trimmed(header):
        return PreparedTrimmed(request, header)
    if not is_head(header) and not (is_its_own_draft and has_layers(header)):
        return PreparedGguf(request, header)
    from edgespec_runtimes.gguf.prepared_head import PreparedHead, PreparedOwnHead

    return (PreparedOwnHead if has_layers(header) else PreparedHead)(request, header)


runtime = GgufRuntime()
