"""Loads llama.cpp models: resident, mapped without reading, or without weights.

Native failures become edgespec's exceptions, with the reason that llama.cpp logged.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from edgespec.concurrency.owning import Closeable, Users
from edgespec.concurrency.worker import raise_if_cancelled
from edgespec.errors import Cancelled, EdgespecError, ModelError
from edgespec.memory.heap import trim_heap_top
from edgespec.ports import Progress
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama import abi, ggml, log, rpc
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.page_advice import huge_pages, lazy_mapping

SMALL_MODEL_BYTES = 12 << 20
"""Size of weights below which a second thread costs more than it gains."""

_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_LOAD_NONE, _LOAD_MMAP = 0, 1
_INTEGER, _TEXT = 0, 3
"""`enum llama_model_kv_override_type`."""
_BESIDE_LAYERS = rb"^(output|token_embd)"
"""Names of tensors that stay in this process if RPC servers get layers."""
_TENSOR_MAPS = (
    ("_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model", 40),
    ("_Z29llama_internal_get_tensor_mapPK11llama_model", 32),
)
"""Symbol of the function that lists a model's tensors, and bytes per entry, for libstdc++ and
libc++."""


class _BufferOverride(ctypes.Structure):
    """`struct llama_model_tensor_buft_override`."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Placement of a model's last layers on devices; by default there is none."""

    n_layers: int = 0
    """Number of layers on devices, with the output head counted as the last one."""
    servers: tuple[str, ...] = ()
    """RPC servers that get them, `HOST:PORT`; without any, the local GPUs."""
    shares: tuple[int, ...] = ()
    """Number of layers on each server."""


NOWHERE = LayerPlacement()


class Model:
    """A llama_model, created by `load_resident` and the functions below."""

    def __init__(self, handle: Any, servers: tuple[str, ...] = (), mtp: bool = False) -> None:
        """With `mtp`, contexts compute only the model's prediction layers (MTP)."""
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
        """Size of the sliding attention window in tokens; 0 if there is none."""
        self.is_hybrid = bool(lib.llama_model_is_hybrid(handle)) and not mtp
        """True if some layers are recurrent and others have attention."""
        is_recurrent = bool(lib.llama_model_is_recurrent(handle))
        self.has_attention = self.is_hybrid or not is_recurrent
        """True if some layers have keys and values."""
        self.tree_capable = mtp or not (is_recurrent or self.is_hybrid)
        """True if single tokens can be dropped from the model's state."""
        self.lender: Any = None
        """A context of the target whose matrices this model uses, if it is a head."""
        self._kept: list[Model | Closeable] = []

    def keep(self, other: Model | Closeable) -> None:
        """Close `other` after this model."""
        self._kept.append(other)

    def take_texts(self, other: Model) -> None:
        """Use the vocabulary of `other`, a model of the same file, and close it with this one."""
        self.vocab = other.vocab
        self.keep(other)

    @property
    def autoregressive(self) -> bool:
        """True if the model is autoregressive with causal attention."""
        return not (
            lib.llama_model_has_encoder(self.handle) or lib.llama_model_is_diffusion(self.handle)
        )

    def tensors(self) -> list[tuple[str, int]]:
        """Names and addresses of all tensors, including duplicates on several devices.

        Raises EdgespecError if the library has no such function.
        """
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
        """Wait until devices have finished the work of a context.

        A pass that fetches no results returns earlier.
        """
        lib.llama_synchronize(context)
        if self._servers:
            rpc.wait_for(self._servers[-1])

    def close(self) -> None:
        if self.handle is not None:
            lib.llama_model_free(self.handle)
            self.handle = None
            trim_heap_top()
        while self._kept:
            self._kept.pop().close()


def load_resident(
    path: Path,
    placement: LayerPlacement,
    stop: AbortFlag,
    progress: Progress | None = None,
    no_texts: GgufFile | None = None,
    packed: bool = False,
) -> Model:
    """Load all weights, `packed` for the CPU as llama.cpp does where that works, or as stored.
    `stop` ends it early. No tokenizer is read if `no_texts` is the file's header."""
    params = _params(_LOAD_NONE, packed=packed and packs())

    @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
    def proceed(share: float, _: Any) -> bool:
        if progress:
            progress("reading weights", share)
        return not stop.is_set

    params.progress_callback = proceed
    try:
        with huge_pages(str(abi.library_file("ggml-base"))):
            return _load(path, params, placement, no_texts)
    except ModelError:
        if stop.is_set:
            raise Cancelled("loading was cancelled") from None
        raise


def load_mapped(
    path: Path,
    placement: LayerPlacement = NOWHERE,
    mtp: bool = False,
    no_texts: GgufFile | None = None,
) -> tuple[Model, bool]:
    """Map the weights without reading any except those for devices, one after the other.

    The second value is True if the platform maps lazily. With `mtp`, only prediction layers are
    computed; no tokenizer is read if `no_texts` is the header.
    """
    params = _params(_LOAD_MMAP, mtp)
    start()
    with lazy_mapping(abi.library_path()) as mappings:

        @lib.llama_progress_callback  # type: ignore[untyped-decorator, unused-ignore]
        def forget(share: float, _: Any) -> bool:
            if share < 1:
                mappings.drop_pages()
            return True

        if placement.n_layers:
            params.progress_callback = forget
        return _load(path, params, placement, no_texts), mappings.is_lazy


def load_filled(path: Path) -> Model:
    """Map and read the weights as llama.cpp does by default, without repacking."""
    return _load(path, _params(_LOAD_MMAP))


def load_sizes_only(path: Path, mtp: bool = False, no_texts: GgufFile | None = None) -> Model:
    """Open a model without weights, for `context_sizes` and the vocabulary.

    With `mtp`, contexts are those of its prediction layers; no tokenizer is read if `no_texts` is
    the header.
    """
    params = _params(_LOAD_NONE, mtp)
    params.no_alloc = True
    return _load(path, params, no_texts=no_texts)


@functools.cache
def version() -> str:
    """The version of llama-cpp-python, which implies that of llama.cpp."""
    return metadata.version("llama-cpp-python")


def build() -> str:
    """llama.cpp's commit and CPU features: builds of the same version may round differently."""
    commit: bytes = ggml.call(ctypes.c_char_p, "ggml_commit")
    return " ".join([commit.decode(), *cpu_features()])


def cpu_features() -> list[str]:
    """Instruction sets that this build of llama.cpp uses."""
    return re.findall(r"(\w+) = 1", lib.llama_print_system_info().decode(errors="replace"))


def packs() -> bool:
    """True if weights may be packed for the CPU.

    Not with AMX: GCC drops the stores of llama.cpp's tile configuration, and the first product of
    several rows would end the process (llama.cpp #20824).
    """
    start()
    return "AMX_INT8" not in cpu_features()


def packing_advice() -> str:
    """Advice where weights are not packed."""
    return (
        f"build llama.cpp without AMX: CFLAGS='{_NO_AMX}' CXXFLAGS='{_NO_AMX}' pip install "
        f"--no-cache-dir --force-reinstall --no-deps llama-cpp-python=={version()}"
    )


def useful_threads(weight_bytes: int, n_threads: int) -> int:
    """Number of threads, at most `n_threads`, that is useful for a model of this size."""
    return 1 if weight_bytes < SMALL_MODEL_BYTES else n_threads


def _params(load_mode: int, mtp: bool = False, packed: bool = False) -> Any:
    params = lib.llama_model_default_params()
    params.load_mode, params.load_mtp, params.use_extra_bufts = load_mode, mtp, packed
    return params


def _place(params: Any, placement: LayerPlacement) -> list[Any]:
    """Set devices, layers and buffers in `params`; returns objects to keep until the model is
    loaded.

    Without layers for them, GPUs are excluded, because llama.cpp would start their libraries.
    """
    params.n_gpu_layers = placement.n_layers
    found = [rpc.devices_of(server)[0] for server in placement.servers]
    if placement.n_layers and not found:
        found = ggml.gpus()
    devices = (ctypes.c_void_p * (len(found) + 1))(*found)
    params.devices = ctypes.addressof(devices)
    kept_alive: list[Any] = [devices]
    if placement.servers:
        # the output head stays: sending logits would take long
        shares = [*placement.shares[:-1], placement.shares[-1] + 1]  # the head counts as a layer
        split = (ctypes.c_float * int(lib.llama_max_devices()))(*shares)
        params.tensor_split = ctypes.cast(split, type(params.tensor_split))
        beside = _BufferOverride(_BESIDE_LAYERS, ggml.plain_buffer_type())
        overrides = (_BufferOverride * 2)(beside)  # the last one ends the list
        field = type(params).tensor_buft_overrides
        ctypes.c_void_p.from_address(
            ctypes.addressof(params) + field.offset
        ).value = ctypes.addressof(overrides)
        kept_alive += [split, overrides]
    return kept_alive


def _load(
    path: Path,
    params: Any,
    placement: LayerPlacement = NOWHERE,
    no_texts: GgufFile | None = None,
) -> Model:
    raise_if_cancelled()
    start()
    kept_alive = _place(params, placement)
    if no_texts is not None:
        kept_alive.append(_leave_out_texts(no_texts, params))
    with log.captured() as lines:
        handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not handle:
            raise ModelError(f"{path} cannot be loaded: {log.complaint(lines)}")
        del kept_alive
        return Model(handle, placement.servers, params.load_mtp)


def _leave_out_texts(header: GgufFile, params: Any) -> Any:
    """Have llama.cpp read no tokenizer, if the file says how many tokens there are; returns an
    object to keep until the model is loaded."""
    overrides: Any = (lib.llama_model_kv_override * 3)()  # the last one ends the list
    if header.n_vocab:
        tokenizer, size = overrides[0], overrides[1]
        tokenizer.tag, tokenizer.key = _TEXT, b"tokenizer.ggml.model"
        tokenizer.value.val_str = b"no_vocab"
        size.tag, size.key = _INTEGER, header.key("vocab_size").encode()
        size.value.val_i64 = header.n_vocab
        params.kv_overrides = overrides
    return overrides


@functools.cache
def start() -> None:
    """Initialize the library, once. Raises EdgespecError if it cannot be used here."""
    version()  # here, so that the process's row has what reads it
    with log.captured():  # drivers log the GPUs that they found
        lib.llama_backend_init()
    ggml.verify_mirror()
