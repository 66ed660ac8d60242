"""llama.cpp through llama-cpp-python's low-level functions: loading, contexts, tensors.

Native failures leave it as edgespec's exceptions, with the reason that llama.cpp logged.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib
import numpy as np

from edgespec.concurrency.owning import Users
from edgespec.errors import Cancelled, EdgespecError, ModelError, UsageError
from edgespec.memory.process import return_free_memory
from edgespec.ports import Progress
from edgespec_runtimes.gguf.llama import log, trials
from edgespec_runtimes.gguf.llama.lazy_mapping import lazy_mapping

CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "bf16": 30,
    "iq4_nl": 20,
}
"""Names that llama.cpp's --cache-type-k takes, and their ggml types."""

SMALL_MODEL_BYTES = 64 << 20
"""Below this a second thread costs more in waking than it computes."""

_LOAD_NONE, _LOAD_MMAP = 0, 1
_MAX_NAME = 64


class GgmlTensor(ctypes.Structure):
    """Mirror of `struct ggml_tensor` (ggml.h); `verify_mirror` checks it against the library."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * _MAX_NAME),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    ]


OP_OFFSET = GgmlTensor.op.offset
SRC_OFFSET = GgmlTensor.src.offset
DATA_OFFSET = GgmlTensor.data.offset
NAME_OFFSET = GgmlTensor.name.offset


def name_of(tensor: int) -> bytes:
    """The name of the tensor at an address."""
    return ctypes.string_at(tensor + NAME_OFFSET)


def int32_rows(tensor: int) -> np.ndarray:
    """The values of an int32 matrix in host memory: int32 [ne[1], ne[0]], not a copy."""
    matrix = GgmlTensor.from_address(tensor)
    n_columns, n_rows, row_bytes = matrix.ne[0], matrix.ne[1], matrix.nb[1]
    nbytes = (n_rows - 1) * row_bytes + 4 * n_columns if n_rows else 0
    content = memoryview((ctypes.c_char * nbytes).from_address(matrix.data))
    return np.ndarray((n_rows, n_columns), np.int32, content, strides=(row_bytes, 4))


@functools.cache
def _trial() -> trials.Trial:
    try:
        base, cpu = library_file("ggml-base"), library_file("ggml-cpu")
    except EdgespecError as error:
        return trials.Trial(trials.Outcome.UNKNOWN, str(error))
    return trials.trial_of(trials.Library(llama_cpp.__version__, base, cpu))


@functools.cache
def _start() -> None:
    trials.check(_trial(), llama_cpp.__version__)
    lib.llama_backend_init()
    verify_mirror()


def _ggml() -> ctypes.CDLL:
    return library("ggml-base")


@functools.cache
def library(stem: str) -> ctypes.CDLL:
    """One of llama.cpp's own libraries, by its name without prefix and ending."""
    return ctypes.CDLL(str(library_file(stem)))


def library_file(stem: str) -> Path:
    """One of llama.cpp's libraries, as llama-cpp-python brings them. Raises EdgespecError."""
    folder = Path(lib.__file__).parent / "lib"
    for name in (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll", f"lib{stem}.dll"):
        if (folder / name).exists():
            return folder / name
    raise EdgespecError(f"llama-cpp-python has no library {stem} in {folder}: reinstall it")


@functools.cache
def packing() -> trials.Packing:
    """Whether resident weights are packed anew for the CPU. The first call of all tries it."""
    _start()
    system_info = lib.llama_print_system_info().decode()
    return trials.decide(system_info, _trial(), llama_cpp.__version__)


def library_path() -> str:
    """Where libllama lies."""
    return str(library_file("llama").resolve())


def verify_mirror() -> None:
    """Refuse to run when this build of ggml lays its tensors out differently.

    Makes tensors in a context of its own and compares what the mirror sees with what the library
    says. Raises EdgespecError.
    """
    ggml = _ggml()

    class InitParams(ctypes.Structure):
        _fields_ = [
            ("mem_size", ctypes.c_size_t),
            ("mem_buffer", ctypes.c_void_p),
            ("no_alloc", ctypes.c_bool),
        ]

    ggml.ggml_init.restype = ggml.ggml_new_tensor_2d.restype = ctypes.c_void_p
    ggml.ggml_get_data.restype = ggml.ggml_mul_mat.restype = ctypes.c_void_p
    ggml.ggml_init.argtypes = [InitParams]
    ggml.ggml_new_tensor_2d.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64,
    ]  # fmt: skip
    ggml.ggml_mul_mat.argtypes = [ctypes.c_void_p] * 3
    ggml.ggml_get_data.argtypes = ggml.ggml_free.argtypes = [ctypes.c_void_p]
    ggml.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    ggml.ggml_set_name.restype = ctypes.c_void_p
    context = ggml.ggml_init(InitParams(1 << 16, None, False))
    try:
        a = ggml.ggml_new_tensor_2d(context, 0, 7, 3)
        b = ggml.ggml_new_tensor_2d(context, 0, 7, 5)
        ggml.ggml_set_name(a, b"edgespec mirror")
        product = ggml.ggml_mul_mat(context, a, b)
        left, out = GgmlTensor.from_address(a), GgmlTensor.from_address(product)
        agrees = (
            left.name == b"edgespec mirror"
            and left.data == ggml.ggml_get_data(a)
            and list(left.ne) == [7, 3, 1, 1]
            and list(out.ne) == [3, 5, 1, 1]
            and list(out.src[:3]) == [a, b, None]
            and op_name(out.op) == "MUL_MAT"
        )
    finally:
        ggml.ggml_free(context)
    if not agrees:
        raise EdgespecError(
            "this build of llama-cpp-python lays out tensors in a way that edgespec does not know: "
            "install the version that pyproject.toml names"
        )


@functools.cache
def op_name(op: int) -> str:
    """ggml's name of an operation."""
    function = _ggml().ggml_op_name
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_int]
    name: bytes = function(op)
    return name.decode()


@functools.cache
def op_number(name: str) -> int:
    """ggml's number of an operation; the numbers change between versions, the names do not."""
    for op in range(256):
        if op_name(op) == name:
            return op
    raise EdgespecError(f"this build of ggml has no operation {name}")


def buffer_is_host(buffer: int | None) -> bool:
    """Whether a tensor's buffer lies in the process's own memory."""
    function = _ggml().ggml_backend_buffer_is_host
    function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    return bool(buffer) and bool(function(buffer))


def _complaint(lines: list[str]) -> str:
    """The most telling line of a log that ended in failure."""
    for line in reversed(lines):
        match = re.search(r"error loading model: (.*)", line)
        if match:
            return match.group(1).strip()
    errors = [line.strip() for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return errors[-1] if errors else "llama.cpp gave no reason"


class Stop:
    """A flag that llama.cpp polls without entering Python.

    llama.cpp asks an abort callback `bool f(void *)` before every node. libc's strlen is such a
    function: of an empty string it is 0 (go on), of one character 1 (abort).
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(b"", 2)
        self.callback = lib.ggml_abort_callback(_pointer_to_strlen())
        self.address = ctypes.addressof(self._text)

    def set(self) -> None:
        self._text.value = b"x"

    def clear(self) -> None:
        self._text.value = b""

    def is_set(self) -> bool:
        return bool(self._text.value)


@functools.cache
def _pointer_to_strlen() -> int:
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
    assert address is not None
    return address


@dataclass(frozen=True, slots=True)
class ContextSizes:
    """Bytes that a context allocates, as llama.cpp itself computed them."""

    kv_bytes: int
    compute_bytes: int
    output_bytes: int
    graph_bytes: int
    """Of the nodes of its graphs, without what they compute."""

    @property
    def total(self) -> int:
        return self.kv_bytes + self.compute_bytes + self.output_bytes + self.graph_bytes


@dataclass(frozen=True, slots=True)
class ContextShape:
    """What decides a context's size."""

    n_ctx: int
    n_batch: int
    """Tokens of a prompt in one batch, at most."""
    n_outputs: int
    n_branches: int
    n_threads: int
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "on"
    n_rollback: int = 0
    """Tokens that a recurrent state can drop again: it is kept as it was before each of them."""

    @property
    def n_seq(self) -> int:
        """A sequence for each branch, and where there are several, one that holds cells while they
        are put in order."""
        return self.n_branches + (self.n_branches > 1)

    @property
    def n_rows(self) -> int:
        """Rows of logits: llama.cpp wants one for each sequence at least."""
        return max(self.n_outputs, self.n_seq)

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch: of a prompt, or of a tree."""
        return max(self.n_batch, self.n_rows)

    def params(self) -> Any:
        p = lib.llama_context_default_params()
        p.n_ctx = self.n_ctx
        p.n_batch = p.n_ubatch = self.largest_batch
        p.n_seq_max = self.n_seq
        p.n_outputs_max = self.n_rows
        p.n_threads = p.n_threads_batch = self.n_threads
        p.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[self.flash_attn]
        p.type_k, p.type_v = CACHE_TYPES[self.cache_type_k], CACHE_TYPES[self.cache_type_v]
        p.kv_unified = p.swa_full = p.no_perf = True
        p.n_rs_seq = self.n_rollback
        p.op_offload = False
        return p


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
        """Whether single tokens can be dropped from the model's state."""
        return not (
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )

    @property
    def autoregressive(self) -> bool:
        """Whether it writes a token after the other, each from those before it alone."""
        return not (
            lib.llama_model_has_encoder(self.handle) or lib.llama_model_is_diffusion(self.handle)
        )

    def close(self) -> None:
        if self.handle is not None:
            lib.llama_model_free(self.handle)
            self.handle = None
            log.give_back()
            return_free_memory()


def _load(path: Path, params: Any) -> Model:
    _start()
    with log.captured() as lines:
        handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ModelError(f"{path} cannot be loaded: {_complaint(lines)}")
        return Model(handle)


def load_resident(
    path: Path, n_gpu_layers: int, stop: Stop, progress: Progress | None = None
) -> Model:
    """All weights in memory, packed for the CPU where that works. Stops early on `stop`."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_NONE, packing().allowed
    params.n_gpu_layers = n_gpu_layers

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
    """Weights mapped, none read; the second value says whether the platform kept that promise."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts = _LOAD_MMAP, False
    params.n_gpu_layers = n_gpu_layers
    _start()
    with lazy_mapping(library_path()) as lazy:
        return _load(path, params), lazy


def useful_threads(weight_bytes: int, n_threads: int) -> int:
    """Of `n_threads`, those that make a model of this size faster."""
    return 1 if weight_bytes < SMALL_MODEL_BYTES else n_threads


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can place layers on a GPU."""
    _start()
    return bool(lib.llama_supports_gpu_offload())


def load_sizes_only(path: Path) -> Model:
    """No weights at all: good for `context_sizes` and vocabulary."""
    params = lib.llama_model_default_params()
    params.load_mode, params.use_extra_bufts, params.no_alloc = _LOAD_NONE, False, True
    params.n_gpu_layers = 0
    return _load(path, params)


_SIZE = re.compile(r"(KV buffer|RS buffer|compute buffer|output buffer)? ?size\s*=\s*([\d.]+) MiB")

_N_NODES = re.compile(r"max_nodes\s*=\s*(\d+)")
_CACHES = ("llama_kv_cache", "llama_memory_recurrent", "llama_dsv4_comp_state")
_N_GRAPHS = 5
"""What a context keeps in graphs: the one it was sized with, the last with and without logits, and
as much as two more in the tables of its scheduler (912 bytes a node were measured)."""


def context_sizes(model: Model, shape: ContextShape) -> ContextSizes:
    """What a context of this shape would allocate; `model` comes from `load_sizes_only`."""
    with log.captured() as lines:
        handle = lib.llama_init_from_model(model.handle, shape.params())
        if not handle:
            raise UsageError(f"llama.cpp refuses this context: {_complaint(lines)}")
        lib.llama_free(handle)
    kv = compute = 0.0
    n_nodes = 0
    for line in lines:
        if nodes := _N_NODES.search(line):
            n_nodes = int(nodes.group(1))
        match = _SIZE.search(line)
        if match is None:
            continue
        what, mib = match.group(1), float(match.group(2))
        if what is None and line.startswith(_CACHES):
            kv += mib
        elif what == "compute buffer":
            compute += mib
    to_bytes = 1 << 20
    return ContextSizes(
        kv_bytes=round(kv * to_bytes),
        compute_bytes=round(compute * to_bytes),
        output_bytes=4 * shape.n_rows * model.n_vocab,
        graph_bytes=_N_GRAPHS * _graph_bytes(n_nodes),
    )


def max_rollback(model: Model, wanted: int) -> int:
    """How many tokens of a line the model's recurrent state can drop again: `wanted`, or 0 where
    llama.cpp cannot roll this architecture back. `model` comes from `load_sizes_only`."""
    shape = ContextShape(
        n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1, n_rollback=wanted
    )
    with log.captured():
        handle = lib.llama_init_from_model(model.handle, shape.params())
    if not handle:
        return 0
    can = int(lib.llama_n_rs_seq(handle))
    lib.llama_free(handle)
    return can


def _graph_bytes(n_nodes: int) -> int:
    """Of one graph that may have `n_nodes`, which llama.cpp reserves and clears at once."""
    ggml = _ggml()
    ggml.ggml_tensor_overhead.restype = ctypes.c_size_t
    ggml.ggml_graph_overhead_custom.restype = ctypes.c_size_t
    ggml.ggml_graph_overhead_custom.argtypes = [ctypes.c_size_t, ctypes.c_bool]
    nodes, edges = n_nodes * ggml.ggml_tensor_overhead(), ggml.ggml_graph_overhead_custom
    return int(nodes + edges(n_nodes, False))


def new_context(model: Model, shape: ContextShape, cb_eval: Any, stop: Stop) -> Any:
    """A llama_context; `cb_eval` may be None. Raises UsageError with llama.cpp's reason."""
    params = shape.params()
    if cb_eval is not None:
        params.cb_eval = cb_eval
    params.abort_callback = stop.callback
    params.abort_callback_data = stop.address
    with log.captured() as lines:
        handle = lib.llama_init_from_model(model.handle, params)
    if not handle:
        raise UsageError(f"llama.cpp refuses this context: {_complaint(lines)}")
    return handle
