"""Loads llama.cpp's models: whole, mapped without being read, or as sizes alone.

Native failures leave it as edgespec's exceptions, with the reason that llama.cpp logged.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib

from edgespec.concurrency.owning import Users
from edgespec.errors import Cancelled, EdgespecError, ModelError
from edgespec.memory.heap import trim_heap_top
from edgespec.ports import Progress
from edgespec_runtimes.gguf.llama import abi, cpu, ggml, log, rpc
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.lazy_mapping import lazy_mapping

SMALL_MODEL_BYTES = 64 << 20
"""Size of weights below which waking a second thread costs more than it brings."""

_LOAD_NONE, _LOAD_MMAP = 0, 1
_BESIDE_LAYERS = rb"^(output|token_embd)"
"""Names of the tensors that stay here where servers hold layers."""
_TENSOR_MAPS = (
    ("_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", 40),
    ("_Z29llama_internal_get_tensor_mapPK11llama_model", 32),
)
"""The function that lists a model's tensors, and bytes of an entry, for libstdc++ and libc++."""


class _BufferOverride(ctypes.Structure):
    """`struct llama_model_tensor_buft_override`."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """The last layers of a model, which go to devices; by default none do."""

    n_layers: int = 0
    """Number of layers, as llama.cpp counts them: the output head is the last one."""
    servers: tuple[str, ...] = ()
    """RPC servers that hold them, `HOST:PORT`; without any, the local GPUs do."""
    shares: tuple[int, ...] = ()
    """Layers of each server."""


NOWHERE = LayerPlacement()


class Model:
    """A llama_model. `load_resident` and the functions below make one."""

    def __init__(self, handle: Any, servers: tuple[str, ...] = (), mtp: bool = False) -> None:
        """`mtp`: its contexts compute its layers for guessing (MTP), and no others."""
        log.take()
        rpc.count(servers, 1)
        self.handle = handle
        self.mtp = mtp
        self._servers = servers
        self.users = Users("the model")
        self.vocab = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(handle)
        self.n_layers: int = lib.llama_model_n_layer(handle)
        self.n_embd: int = lib.llama_model_n_embd(handle)
        self.n_window: int = lib.llama_model_n_swa(handle)
        """Tokens that layers with a sliding window see; 0 for none."""
        self.lender: Any = None
        """A context of the model whose matrices this one computes with, in the place of its own."""

    @property
    def tree_capable(self) -> bool:
        """True if single tokens can be dropped from the model's state."""
        return self.mtp or not (
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )

    @property
    def autoregressive(self) -> bool:
        """True if the model writes a token after the other, each from those before it alone."""
        return not (
            lib.llama_model_has_encoder(self.handle) or lib.llama_model_is_diffusion(self.handle)
        )

    def tensors(self) -> list[tuple[str, int]]:
        """Names and addresses of all tensors; one that lies in two places is there twice. Raises
        EdgespecError if the library does not tell."""
        library = ctypes.CDLL(abi.library_path())
        for name, entry_bytes in _TENSOR_MAPS:
            if function := getattr(library, name, None):
                function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
                begin, end = (ctypes.c_uint64 * 2).from_address(function(self.handle))
                pointers = range(begin + entry_bytes - 8, end, entry_bytes)
                found = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
                return [(abi.name_of(tensor).decode(), tensor) for tensor in found]
        raise EdgespecError("this build of llama.cpp does not tell where it placed its tensors")

    def wait(self, context: Any) -> None:
        """Wait until devices have computed what one of the model's contexts gave them. A pass that
        fetches nothing from them ends before that."""
        lib.llama_synchronize(context)
        if self._servers:
            rpc.wait(self._servers[-1])

    def close(self) -> None:
        if self.handle is not None:
            lib.llama_model_free(self.handle)
            self.handle = None
            rpc.count(self._servers, -1)
            log.give_back()
            trim_heap_top()


def load_resident(
    path: Path, placement: LayerPlacement, stop: AbortFlag, progress: Progress | None = None
) -> Model:
    """All weights in memory, packed for the CPU where that works. Stops early on `stop`."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_NONE, packing().allowed

    @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
    def proceed(share: float, _: Any) -> bool:
        if progress:
            progress("reading weights", share)
        return not stop.is_set()

    params.progress_callback = proceed
    try:
        return _load(path, params, placement)
    except ModelError:
        if stop.is_set():
            raise Cancelled("loading was cancelled") from None
        raise


def load_mapped(
    path: Path, placement: LayerPlacement = NOWHERE, mtp: bool = False
) -> tuple[Model, bool]:
    """Weights mapped, none read but those that go to devices, one after the other; the second value
    says whether the platform kept that promise. `mtp`: its layers for guessing are what is
    computed."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_MMAP, False
    params.load_mtp = mtp
    start()
    with lazy_mapping(abi.library_path()) as mappings:

        @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
        def forget(share: float, _: Any) -> bool:
            if share < 1:
                mappings.drop_pages()
            return True

        if placement.n_layers:
            params.progress_callback = forget
        return _load(path, params, placement), mappings.is_lazy


def load_filled(path: Path, placement: LayerPlacement, stop: AbortFlag) -> Model:
    """Mapped and filled as llama.cpp does it, without repacked copies."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_MMAP, False
    return _load(path, params, placement)


def load_sizes_only(path: Path, mtp: bool = False) -> Model:
    """No weights at all: good for `context_sizes` and vocabulary. `mtp`: its layers for guessing
    are what is measured."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts, params.no_alloc = _LOAD_NONE, False, True
    params.load_mtp = mtp
    return _load(path, params)


def version() -> str:
    """The version of llama-cpp-python, which implies that of llama.cpp."""
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
    start()
    system_info = lib.llama_print_system_info().decode()
    return cpu.decide_packing(system_info, _trial(), llama_cpp.__version__)


def useful_threads(weight_bytes: int, n_threads: int) -> int:
    """The threads, at most `n_threads`, that make a model of this size faster."""
    return 1 if weight_bytes < SMALL_MODEL_BYTES else n_threads


def _place(params: Any, placement: LayerPlacement) -> list[Any]:
    """Say which devices take which layers; returns what must live until the model is loaded.

    Without layers for them, GPUs are left alone: llama.cpp would start the library of each.
    """
    params.n_gpu_layers = placement.n_layers
    found = _devices(placement) if placement.n_layers else []
    devices = (ctypes.c_void_p * (len(found) + 1))(*found)
    params.devices = ctypes.addressof(devices)
    if not placement.servers:
        return [devices]
    # the output head stays: logits of a vocabulary are long to send
    shares = [*placement.shares[:-1], placement.shares[-1] + 1]  # the head counts as a layer
    split = (ctypes.c_float * int(lib.llama_max_devices()))(*shares)
    stay = (_BufferOverride * 2)(_BufferOverride(_BESIDE_LAYERS, ggml.plain_buffer_type()))
    params.tensor_split = ctypes.cast(split, type(params.tensor_split))
    overrides = type(params).tensor_buft_overrides
    ctypes.c_void_p.from_address(
        ctypes.addressof(params) + overrides.offset
    ).value = ctypes.addressof(stay)
    return [devices, split, stay]


def _devices(placement: LayerPlacement) -> list[int]:
    if not placement.servers:
        return ggml.gpus()
    return [rpc.devices_of(server)[0] for server in placement.servers]


def _load(path: Path, params: Any, placement: LayerPlacement = NOWHERE) -> Model:
    start()
    kept_alive = _place(params, placement)
    with log.captured() as lines:
        handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ModelError(f"{path} cannot be loaded: {log.complaint(lines)}")
        del kept_alive
        return Model(handle, placement.servers, params.load_mtp)


@functools.cache
def _trial() -> cpu.TrialResult:
    try:
        files = abi.library_file("ggml-base"), abi.library_file("ggml-cpu")
    except EdgespecError as error:
        return cpu.TrialResult(cpu.TrialOutcome.UNKNOWN, str(error))
    return cpu.trial_result(cpu.LibraryFiles(llama_cpp.__version__, *files))


@functools.cache
def start() -> None:
    """Start the library, once. Raises EdgespecError if it cannot be used here."""
    cpu.check_usable(_trial(), llama_cpp.__version__)
    with log.captured():  # drivers tell which GPUs they found
        lib.llama_backend_init()
    ggml.verify_mirror()
