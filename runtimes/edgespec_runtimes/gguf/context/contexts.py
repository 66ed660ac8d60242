"""Creates llama.cpp's contexts, and measures what they allocate.

Raises UsageError with llama.cpp's reason if it refuses a context.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgespec.errors import UsageError
from edgespec.memory.budget import MIB
from edgespec_runtimes.gguf.context.cache_memory import (
    CacheMemory,
    clearing_by,
    values_are_rows,
)
from edgespec_runtimes.gguf.context.cell_order import MIN_WASTE
from edgespec_runtimes.gguf.context.windows import (
    WindowCells,
    WindowShape,
    is_for_windows,
    n_ends,
)
from edgespec_runtimes.gguf.file.layout import KINDS
from edgespec_runtimes.gguf.llama import ggml, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag, abort_callback
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.loading import Model


@dataclass(frozen=True, slots=True)
class ContextSizes:
    """Bytes that a context allocates, as computed by llama.cpp."""

    kv_bytes: int
    compute_bytes: int
    output_bytes: int
    graph_bytes: int
    """Bytes of the graphs' nodes, without results."""
    state_bytes: int = 0
    """Bytes of one copy of the recurrent state, a part of the cache."""
    has_rows: bool = True
    """True if the values of a cell are a row of the cache."""


@dataclass(frozen=True, slots=True)
class ContextShape:
    """The settings of a context that determine its size."""

    n_ctx: int
    """Tokens of each text."""
    n_batch: int
    """Most prompt tokens in one batch."""
    n_outputs: int
    n_branches: int
    n_threads: int
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "on"
    n_rollback: int = 0
    """Tokens that the recurrent state can be rolled back, with a copy of it for each."""
    line_rows: int = 0
    """Most rows of a branch that is computed as a separate line; 0 if branches share rows."""
    has_spare: bool = False
    """True if there is a spare sequence for cells that are dropped, moved or saved."""
    n_slots: int = 1
    n_shared: int = 0
    """Tokens of all texts together; 0: `n_ctx` each."""
    frees_cells: bool = False
    """True if sliding-window layers free cells outside all windows."""
    tile: int = 1
    """Cells of a tile that each of several texts is aligned with; 1 if they need not be."""
    prompts_in_tiles: bool = False
    """True if prompts of 64 tokens and more are computed in tiles, with which texts are aligned."""
    pools: bool = False
    """True if outputs are pooled, as of an embedding model: each text is a batch."""

    @property
    def n_cells(self) -> int:
        if self.n_shared:  # with nodes of a pass, and those that stay provisional
            return self.n_shared + 2 * self.n_outputs
        return self.n_slots * (self.n_ctx + self.tile * (self.tile > 1))

    @property
    def n_seq(self) -> int:
        """Number of sequences: one per text and further branch, and the spare one; with tiles one
        more, through which cells are moved; without rollback also one for the first of several
        rows."""
        return self.n_slots + self.n_branches - 1 + self.can_save + (self.tile > 1)

    @property
    def can_save(self) -> bool:
        """True if a sequence is free between passes, through which parts of a text are saved."""
        is_apart = not self.n_rollback and (self.n_branches > 1 or self.line_rows > 0)
        return self.has_spare or is_apart

    @property
    def n_rows(self) -> int:
        """Rows of logits; llama.cpp requires at least one per sequence."""
        return max(self.n_outputs, self.n_seq)

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch of a prompt, a tree, or lines."""
        return max(self.n_batch, self.n_rows, self.n_branches * self.line_rows)

    def params(self, model: Model) -> Any:
        p = lib.llama_context_default_params()
        p.n_ctx = self.n_cells
        p.n_batch = p.n_ubatch = self.largest_batch
        p.embeddings = self.pools
        p.n_seq_max = self.n_seq
        p.n_outputs_max = self.n_batch if self.pools else self.n_rows
        p.n_threads = p.n_threads_batch = self.n_threads
        p.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[self.flash_attn]
        types = self.cache_type_k, self.cache_type_v
        p.type_k, p.type_v = (KINDS[name.upper()].code for name in types)
        p.kv_unified = p.swa_full = p.no_perf = True
        p.n_rs_seq = self.n_rollback
        p.op_offload = False
        p.ctx_other = model.lender
        if model.mtp:
            p.ctx_type = _MTP
        return p


_MTP = 1
"""`LLAMA_CONTEXT_TYPE_MTP`."""
_SIZE = re.compile(r"(KV buffer|RS buffer|compute buffer|output buffer)? ?size\s*=\s*([\d.]+) MiB")

_N_NODES = re.compile(r"max_nodes\s*=\s*(\d+)")
_WINDOWS = "llama_kv_cache_iswa"
_CACHE_SHAPE = re.compile(r"size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers")
_RECURRENT = "llama_memory_recurrent"
_CACHES = ("llama_kv_cache", _RECURRENT, "llama_dsv4_comp_state")
_STATE_HEAD_BYTES = 16 << 10
"""Upper bound of the header of a saved state, and of rounding in llama.cpp's log."""
_N_GRAPHS = 5.5
"""Graphs of a context: the one for sizing, the latest with and without logits, and the equivalent
of at most two and a half more in the scheduler's tables: 5.3 graphs were measured in all of
glm5-next and kimi-k3, 5.0 of kimi-linear, 4.1 of qwen3next."""


def context_sizes(model: Model, shape: ContextShape) -> ContextSizes:
    """Sizes of a context of this shape; `model` is from `load_sizes_only`."""
    with log.captured() as lines, clearing_by(lambda *_: None):
        handle = lib.llama_init_from_model(model.handle, shape.params(model))
        if not handle:
            raise UsageError(f"llama.cpp refuses this context: {log.complaint(lines)}")
        lib.llama_free(handle)
    kv = compute = recurrent = 0.0
    n_nodes = 0
    window = window_shape(model.n_window, shape)
    for n, line in enumerate(lines):
        if nodes := _N_NODES.search(line):
            n_nodes = int(nodes.group(1))
        match = _SIZE.search(line)
        if match is None:
            continue
        buffer, mib = match.group(1), float(match.group(2))
        if buffer is None and line.startswith(_CACHES):
            kv += _window_mib(window, line) if window and is_for_windows(lines[:n]) else mib
            recurrent += mib if line.startswith(_RECURRENT) else 0.0
        elif buffer == "compute buffer":
            compute += mib
    n_states = shape.n_seq * (1 + shape.n_rollback)
    return ContextSizes(
        kv_bytes=round(kv * MIB),
        compute_bytes=round(compute * MIB),
        output_bytes=4 * shape.n_rows * model.n_vocab,
        graph_bytes=int(_N_GRAPHS * _graph_bytes(n_nodes)),
        state_bytes=round(recurrent * MIB / n_states) + _STATE_HEAD_BYTES if recurrent else 0,
        has_rows=values_are_rows(lines),
    )


def window_shape(n_window: int, shape: ContextShape) -> WindowShape | None:
    """Sizes that determine the memory of sliding-window layers; None if they keep all cells."""
    if not shape.frees_cells or not n_window:
        return None
    n_loose = MIN_WASTE + shape.n_outputs
    window = WindowShape(n_window, shape.n_ctx, shape.n_slots, n_loose, shape.largest_batch)
    return window if window.n_seen + window.n_latest < shape.n_cells else None


def _window_mib(window: WindowShape, line: str) -> float:
    found = _CACHE_SHAPE.search(line)
    assert found is not None, line
    mib, n_cells, n_layers = found.groups()
    return window.planned_bytes(int(n_cells), int(n_layers), int(float(mib) * MIB)) / MIB


class StateSupport(NamedTuple):
    """llama.cpp's support for rolling back and copying a model's recurrent state."""

    n_rollback: int
    """Number of tokens that can be rolled back."""
    can_copy: bool
    """True if the state can be saved without attention."""


def state_support(model: Model, wanted: int) -> StateSupport:
    """Support for rolling the recurrent state back by `wanted` tokens, or 0 if llama.cpp cannot.

    `model` is from `load_sizes_only`.
    """
    shape = ContextShape(
        n_ctx=256, n_batch=32, n_outputs=1, n_branches=1, n_threads=1, n_rollback=wanted
    )
    with log.captured() as lines, clearing_by(lambda *_: None):
        handle = lib.llama_init_from_model(model.handle, shape.params(model))
    if not handle:
        return StateSupport(0, False)
    n_rollback = int(lib.llama_n_rs_seq(handle))
    lib.llama_free(handle)
    return StateSupport(n_rollback, not any(line.startswith(_WINDOWS) for line in lines))


def _graph_bytes(n_nodes: int) -> int:
    """Bytes of a graph of up to `n_nodes`, which llama.cpp allocates and clears at once."""
    tensor_bytes = ggml.call(ctypes.c_size_t, "ggml_tensor_overhead")
    size = ctypes.c_size_t(n_nodes), ctypes.c_bool(False)
    edges_bytes = ggml.call(ctypes.c_size_t, "ggml_graph_overhead_custom", *size)
    return int(n_nodes * tensor_bytes + edges_bytes)


def windows_of(model: Model, shape: ContextShape) -> WindowCells | None:
    """The cells of a context's sliding-window layers, if they free cells."""
    window = window_shape(model.n_window, shape)
    if window is None:
        return None
    return WindowCells(window.n_window, shape.n_cells, n_ends(window.n_window, shape.n_ctx))


def new_context(
    model: Model,
    shape: ContextShape,
    cb_eval: Any,
    stop: AbortFlag,
    caches: CacheMemory | None = None,
) -> Any:
    """Create a llama_context; `cb_eval` may be None. Raises UsageError with llama.cpp's reason.

    `caches` learns the buffers of keys and values.
    """
    params = shape.params(model)
    if cb_eval is not None:
        params.cb_eval = cb_eval
    params.abort_callback = abort_callback()
    params.abort_callback_data = ctypes.addressof(stop)
    with log.captured() as lines, caches.captured(lines) if caches else nullcontext():
        handle = lib.llama_init_from_model(model.handle, params)
    if not handle:
        raise UsageError(f"llama.cpp refuses this context: {log.complaint(lines)}")
    return handle
