"""Loads llama.cpp's models: whole, mapped without being read, or as sizes alone.

Native failures leave it as edgespec's exceptions, with the reason that llama.cpp logged.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib

from edgespec.concurrency.owning import Users
from edgespec.errors import Cancelled, EdgespecError, ModelError
from edgespec.memory.process import return_free_memory
from edgespec.ports import Progress
from edgespec_runtimes.gguf.llama import abi, cpu, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.lazy_mapping import lazy_mapping

SMALL_MODEL_BYTES = 64 << 20
"""Size of weights below which waking a second thread costs more than it brings."""

_LOAD_NONE, _LOAD_MMAP = 0, 1
_NO_DEVICES = (ctypes.c_void_p * 1)()
"""An empty list of devices; without a list llama.cpp takes all of them."""


class Model:
    """A llama_model. `load_resident`, `load_mapped` and `load_sizes_only` make one."""

    def __init__(self, handle: Any) -> None:
        log.take()
        self.handle = handle
        self.users = Users("the model")
        self.vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(handle)
        self.n_layers: int = lib.llama_model_n_layer(handle)
        self.n_embd: int = lib.llama_model_n_embd(handle)

    @property
    def tree_capable(self) -> bool:
        """True if single tokens can be dropped from the model's state."""
        return not (
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )

    @property
    def autoregressive(self) -> bool:
        """True if the model writes a token after the other, each from those before it alone."""
        return not (
            lib.llama_model_has_encoder(self.handle) or lib.llama_model_is_diffusion(self.handle)
        )

    def close(self) -> None:
        if self.handle is not None:
            lib.llama_model_free(self.handle)
            self.handle = None
            log.give_back()
            return_free_memory()


def load_resident(
    path: Path, n_gpu_layers: int, stop: AbortFlag, progress: Progress | None = None
) -> Model:
    """All weights in memory, packed for the CPU where that works. Stops early on `stop`."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_NONE, packing().allowed
    _place(params, n_gpu_layers)

    @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
    def proceed(share: float, _: Any) -> bool:
        if progress:
            progress("reading weights", share)
        return not stop.is_set()

    params.progress_callback = proceed
    try:
        return _load(path, params)
    except ModelError:
        if stop.is_set():
            raise Cancelled("loading was cancelled") from None
        raise


def load_mapped(path: Path, n_gpu_layers: int = 0) -> tuple[Model, bool]:
    """Weights mapped, none read but those that go to a GPU, one after the other; the second value
    says whether the platform kept that promise."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_MMAP, False
    _place(params, n_gpu_layers)
    _start()
    with lazy_mapping(abi.library_path()) as mappings:

        @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
        def forget(share: float, _: Any) -> bool:
            if share < 1:
                mappings.drop_pages()
            return True

        if n_gpu_layers:
            params.progress_callback = forget
        return _load(path, params), mappings.is_lazy


def load_sizes_only(path: Path) -> Model:
    """No weights at all: good for `context_sizes` and vocabulary."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts, params.no_alloc = _LOAD_NONE, False, True
    _place(params, 0)
    return _load(path, params)


def version() -> str:
    """The version of llama-cpp-python, which stands for that of llama.cpp."""
    return str(llama_cpp.__version__)


def build() -> str:
    """llama.cpp's commit and CPU features: other builds of one version may round otherwise."""
    commit = abi.ggml().ggml_commit
    commit.restype = ctypes.c_char_p
    return " ".join([commit().decode(), *cpu_features()])


def cpu_features() -> list[str]:
    """The extensions of the processor that this build of llama.cpp uses."""
    return re.findall(r"(\w+) = 1", lib.llama_print_system_info().decode(errors="replace"))


@functools.cache
def packing() -> cpu.PackingDecision:
    """The decision about packing resident weights for the CPU. The first call of all tries it."""
    _start()
    system_info = lib.llama_print_system_info().decode()
    return cpu.decide_packing(system_info, _trial(), llama_cpp.__version__)


def useful_threads(weight_bytes: int, n_threads: int) -> int:
    """The threads, at most `n_threads`, that make a model of this size faster."""
    return 1 if weight_bytes < SMALL_MODEL_BYTES else n_threads


def supports_gpu() -> bool:
    """True if this build of llama.cpp can place layers on a GPU."""
    _start()
    return bool(lib.llama_supports_gpu_offload())


def _place(params: Any, n_gpu_layers: int) -> None:
    """Without layers for them, GPUs are left alone: llama.cpp would start the library of each."""
    params.n_gpu_layers = n_gpu_layers
    if not n_gpu_layers:
        params.devices = ctypes.addressof(_NO_DEVICES)


def _load(path: Path, params: Any) -> Model:
    _start()
    with log.captured() as lines:
        handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ModelError(f"{path} cannot be loaded: {log.complaint(lines)}")
        return Model(handle)


@functools.cache
def _trial() -> cpu.TrialResult:
    try:
        files = abi.library_file("ggml-base"), abi.library_file("ggml-cpu")
    except EdgespecError as error:
        return cpu.TrialResult(cpu.TrialOutcome.UNKNOWN, str(error))
    return cpu.trial_result(cpu.LibraryFiles(llama_cpp.__version__, *files))


@functools.cache
def _start() -> None:
    cpu.check_usable(_trial(), llama_cpp.__version__)
    lib.llama_backend_init()
    abi.verify_mirror()
