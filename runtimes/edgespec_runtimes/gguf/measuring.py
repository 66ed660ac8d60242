"""Measures the memory needs of a GGUF model: contexts, plan rows, and tensors on devices.

Sizes come from a model opened without weights, the order of weights from a mapping that is not
read. Nothing stays loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from edgespec.errors import ModelError
from edgespec.memory.budget import LOADING, PROMPT_BUFFERS, MemoryRow
from edgespec.memory.heap import allocated_bytes
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.registry import GpuMemory, ModelRequest, PreparedModel
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context import contexts, windows
from edgespec_runtimes.gguf.context.prompt_buffers import BufferSizes
from edgespec_runtimes.gguf.context.recurrent import N_CHECKPOINTS
from edgespec_runtimes.gguf.context_choice import BATCH_SIZES, ContextChoice
from edgespec_runtimes.gguf.feature_tap import gives_inputs
from edgespec_runtimes.gguf.file.architectures import WHOLE_TEXT, architecture, unfit
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.heads import is_head, skipped
from edgespec_runtimes.gguf.kernels.invariant_kernels import (
    CELLS_ROUNDED_TO,
    MIN_TILED_BATCH,
    TILE_ROWS,
)
from edgespec_runtimes.gguf.kernels.packer import PIECE_BYTES
from edgespec_runtimes.gguf.llama import gpu, loading, rpc
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.weights.mapped_weights import MappedWeights
from edgespec_runtimes.gguf.weights.offloading import (
    Offloading,
    offloading,
    place_layers,
    to_servers,
)
from edgespec_runtimes.gguf.weights.packing import invariant_types, packed_matrices, turn_notes
from edgespec_runtimes.gguf.weights.paged_experts import expert_sizes

ID_STEP_BYTES = 64 << 10
"""Rounding step of the size of a model without weights and tokenizer: malloc's count differs by a
few KiB between processes, and all must report the same smallest budget."""


class MeasuredGguf(PreparedModel):
    """Memory needs of a model, measured on construction; those that need a mapping, on demand."""

    def __init__(
        self, request: ModelRequest, header: GgufFile, lender: Any = None, mtp: bool = False
    ) -> None:
        """`lender` is a context of the target whose matrices a head uses. With `mtp`, `header` is
        the part of a target's file with its prediction layers."""
        self.seconds = {}
        self._phase = partial(request.phase, seconds=self.seconds)
        self._options = GgufOptions.of(request.options)
        self._header = header
        self.vocabulary_fingerprint = header.made_for
        self.stop = AbortFlag()
        self.feature_layers: Sequence[int] = ()
        self._lender, self._mtp = lender, mtp
        self._guesses_with_target = lender is not None or mtp or is_head(header)
        """True for heads, which keep all they have read."""
        timed = partial(self._phase, "mapping")
        self._mapped = MappedWeights(header, lambda: self.offloading, self.stop, timed)
        self._measure(request)

    def _measure(self, request: ModelRequest) -> None:
        self.request, header = request, self._header
        before_bytes = allocated_bytes()
        sizes_only = loading.load_sizes_only(header.path, self._mtp, header)
        sizes_only.lender = self._lender
        taken_bytes = max(0, allocated_bytes() - before_bytes)
        self._id_bytes = -(-taken_bytes // ID_STEP_BYTES) * ID_STEP_BYTES
        try:
            if not sizes_only.autoregressive and not is_head(header):
                raise unfit(header, WHOLE_TEXT)
            self._choice = ContextChoice(
                request, self._options, header, self._guesses_with_target, sizes_only
            )
            self._info, self.contexts = self._choice.info, self._choice.contexts
        finally:
            sizes_only.close()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def share_cells(self, n_cells: int) -> None:
        for name in ("_needs", "offloading"):
            self.__dict__.pop(name, None)
        self._measure(replace(self.request, n_cells=n_cells))

    def needs(self) -> ModelNeeds:
        return self._needs

    @cached_property
    def _needs(self) -> ModelNeeds:
        owner, on_gpu = self.request.owner, self.offloading
        elsewhere = on_gpu.names | (skipped(self._header) if owner == "target" else frozenset())
        here = [tensor for tensor in self._header.tensors if tensor.name not in elsewhere]
        packed = packed_matrices(self._header)
        kv_bytes = max(sizes.kv_bytes for _, sizes in self.contexts)
        held_bytes = kv_bytes - max(self._line_bytes(sizes) for _, sizes in self.contexts)
        n_cells = self._info.n_cells or self._info.n_slots * self._info.n_ctx
        what = f"KV cache ({n_cells} tokens)"
        caches = MemoryRow(owner, what, held_bytes, is_lent=self._lends_caches)
        fixed = [caches]
        if on_gpu.has_own_memory:
            fixed = [] if on_gpu.has_cache else fixed
        else:
            fixed.append(MemoryRow(owner, "weights of layers on the GPU", on_gpu.nbytes))
        if nbytes := N_CHECKPOINTS * self.checkpoint_bytes:
            fixed.append(MemoryRow(owner, f"states at {N_CHECKPOINTS} turns", nbytes))
        if owner == "draft":  # the target's is open during planning, and part of the process's row
            fixed.append(MemoryRow(owner, "token ids", self._id_bytes))
        holds_texts = self._choice.may_hold_texts(self._info.tree_capable)
        needs = ModelNeeds(
            fixed=tuple(fixed),
            batches=tuple(self._batch_needs(shape, sizes) for shape, sizes in self.contexts),
            resident=(
                MemoryRow(owner, "weights", sum(tensor.nbytes for tensor in here)),
                MemoryRow(owner, LOADING, max(PIECE_BYTES * bool(packed), on_gpu.loading_bytes)),
            ),
            cell_bytes=self.token_bytes * (self._info.n_cells > 0 and not on_gpu.names),
            text_bytes=(TILE_ROWS * self.token_bytes + 4 * self._info.n_vocab) * holds_texts,
            texts_alter_prompts=self._choice.texts_alter_prompts,
        )
        if owner == "draft":
            return needs
        lower_bytes = self._mapped.nested.memory_bytes if self._mapped.nested else 0
        return replace(
            needs,
            paged=(
                MemoryRow(owner, "norms and other small tensors", self._mapped.unpaged_bytes),
                *((MemoryRow(owner, "copy of what is packed", PIECE_BYTES),) * bool(packed)),
                *((MemoryRow(owner, "lower bits", lower_bytes),) * bool(lower_bytes)),
            ),
            cuts=tuple(tuple(group.size for group in groups) for groups in self._mapped.cuts),
            experts=expert_sizes(self._mapped.mixtures),
        )

    @property
    def _lends_caches(self) -> bool:
        """True if keys and values take memory as texts grow, and paged weights have it before."""
        shape, sizes = self.contexts[0]
        is_whole = self.request.owner == "target" and not self.offloading.names
        has_windows = contexts.window_shape(self._choice.n_window, shape) is not None
        fills = windows.is_supported() and sizes.has_rows
        return is_whole and self._info.tree_capable and fills and not has_windows

    @cached_property
    def gpu_memory(self) -> GpuMemory | None:
        """Total memory of the GPUs that get layers, without memory of RPC servers or memory shared
        with the process."""
        on_gpu = self.offloading
        has_gpu = on_gpu.names and not on_gpu.placement.servers and on_gpu.has_own_memory
        return gpu.memory() if has_gpu else None

    @property
    def is_draft(self) -> bool:
        """True if rounding does not matter."""
        return self.request.owner == "draft"

    @property
    def invariant_types(self) -> set[str]:
        """Weight types whose products must be batch invariant; none for a draft."""
        on_gpu = bool(self.offloading.names)
        return set() if self.is_draft else invariant_types(self._header, on_gpu)

    @property
    def prompts_are_invariant(self) -> bool:
        """True if a prompt rounds the same whatever prefix of it is reused.

        Otherwise a recurrent state that was computed in tiles could never be reused.
        """
        is_here = not self.offloading.names
        return is_here and not self.is_draft and not turn_notes(self._header, self._info)

    def place(self, gpu_bytes: int) -> Sequence[MemoryRow]:
        """Place the requested layers; returns their rows. Raises BudgetError if they do not fit."""
        _, sizes = max(self.contexts, key=lambda one: one[1].kv_bytes + one[1].compute_bytes)
        return place_layers(
            self._header,
            self.request.owner,
            self._options.gpu_layers_of(self.request.owner),
            self._info.n_layers,
            sizes,
            gpu_bytes,
        )

    def offer_features(self, layers: Sequence[int], n_values: int) -> None:
        width, reason, n_layers = self._header.embedding_length, "", self._info.n_layers
        if self._choice.is_remote:
            reason = "servers compute it, which do not hand them out"
        elif n_values != width:
            reason = f"they have {width} values and the head reads {n_values}"
        elif not self._shows_its_end(layers) and not all(0 < n < n_layers for n in layers):
            # the first layer's input, the embeddings, is not available
            read = ", ".join(map(str, layers))
            reason = f"the head reads layers {read} of 1 to {n_layers - 1}"
        if reason:
            raise ModelError(
                f"{self._info.name} cannot give the inputs of its layers to this head ({reason}): "
                "name a head that was trained for this model, or another draft"
            )
        self.feature_layers = tuple(layers)

    @property
    def gives_features(self) -> bool:
        """True if llama.cpp's graph gives the inputs of `feature_layers` itself."""
        is_end = self._shows_its_end(self.feature_layers)
        return is_end or gives_inputs(self._header.architecture)

    def _shows_its_end(self, layers: Sequence[int]) -> bool:
        """True if `layers` is the input of prediction layers, in the model's file or apart."""
        is_known = architecture(self._header.architecture).own_layer is not None
        return tuple(layers) == (self._info.n_layers,) and is_known

    @cached_property
    def offloading(self) -> Offloading:
        servers = self._options.servers_of(self.request.owner)
        if not servers:
            return offloading(self._header, self._options.gpu_layers_of(self.request.owner))
        return to_servers(
            self._header,
            rpc.memory_of(servers),
            self._options.gpu_layers_of(self.request.owner) or None,
            max(sizes.kv_bytes for _, sizes in self.contexts),
            max(sizes.compute_bytes for _, sizes in self.contexts),
        )

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint of a target's recurrent state, which is kept at prompt ends."""
        is_target = self.request.owner == "target"
        return max(sizes.state_bytes for _, sizes in self.contexts) if is_target else 0

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token, at least."""
        shape, sizes = self.contexts[-1]
        n_cells = -(-shape.n_cells // CELLS_ROUNDED_TO) * CELLS_ROUNDED_TO
        return -(-sizes.kv_bytes // n_cells)

    @property
    def unplanned(self) -> int:
        """Index of the context for loading without a plan: one line, as nothing is paged."""
        branches = [shape.n_branches for shape, _ in self.contexts]
        return 0 if self._info.tree_capable else branches.index(min(branches))

    def _batch_needs(
        self, shape: contexts.ContextShape, sizes: contexts.ContextSizes
    ) -> BatchNeeds:
        owner = self.request.owner
        lent_bytes = buffers.lent_bytes if (buffers := self.buffers(shape)) else 0
        rows = (
            MemoryRow(owner, "compute buffers", sizes.compute_bytes - lent_bytes),
            *(MemoryRow(owner, PROMPT_BUFFERS, n, is_lent=True) for n in [lent_bytes] if n),
            MemoryRow(owner, "compute graphs", sizes.graph_bytes),
            MemoryRow(owner, f"logits ({shape.n_outputs} nodes)", self._logits_bytes(sizes)),
            *self._feature_rows(shape),
            *self._line_rows(shape, sizes),
        )
        if owner == "draft":
            return BatchNeeds(shape.n_batch, rows, max_nodes=shape.n_outputs)
        nbytes = self._mapped.looked_up_bytes(shape.largest_batch)
        paged = MemoryRow(owner, "embedding rows", nbytes)
        is_small = not self.request.batch_size and shape.n_batch < min(
            self._info.n_ctx, *BATCH_SIZES
        )
        return BatchNeeds(shape.n_batch, rows, (paged,), shape.n_outputs, is_small)

    def buffers(self, shape: contexts.ContextShape) -> BufferSizes | None:
        """Sizes of the compute buffers of a context whose prompts come in larger batches than a
        pass needs otherwise; None of others, and where their pages cannot be given back."""
        sizes_of = {(s.n_outputs, s.n_batch): (s.largest_batch, z) for s, z in self.contexts}
        found = sizes_of.get((shape.n_outputs, MIN_TILED_BATCH))
        if not found or self.offloading.names or not windows.is_supported():
            return None
        n_rows, kept_bytes = found[0], found[1].compute_bytes
        whole_bytes = sizes_of[shape.n_outputs, shape.n_batch][1].compute_bytes
        return BufferSizes(n_rows, kept_bytes, max(0, whole_bytes - kept_bytes))

    def _logits_bytes(self, sizes: contexts.ContextSizes) -> int:
        """Bytes of llama.cpp's output buffer, and of the copies that some passes need of it."""
        several = self.request.owner == "draft" and self._info.n_slots > 1
        is_copied = several or self._guesses_with_target or not self._info.tree_capable
        return (1 + is_copied) * sizes.output_bytes

    def _line_rows(
        self, shape: contexts.ContextShape, sizes: contexts.ContextSizes
    ) -> tuple[MemoryRow, ...]:
        """Plan rows for the states of further lines, and for the buffer that restores a state."""
        if self._info.tree_capable or shape.n_branches == 1:
            return ()
        what, nbytes = f"states of {shape.n_branches} lines", self._line_bytes(sizes)
        if shape.n_rollback:
            nbytes += sizes.state_bytes
        return (MemoryRow(self.request.owner, what, nbytes),)

    def _line_bytes(self, sizes: contexts.ContextSizes) -> int:
        """Bytes of a context's states for the lines of a tree after the first."""
        if self._info.tree_capable:
            return 0
        return sizes.kv_bytes - min(sizes.kv_bytes for _, sizes in self.contexts)

    def _feature_rows(self, shape: contexts.ContextShape) -> tuple[MemoryRow, ...]:
        if not self.feature_layers:
            return ()
        width, n_layers = self._header.embedding_length, len(self.feature_layers)
        # the graph holds all rows, and llama.cpp a copy
        n_rows = shape.largest_batch * (1 + self.gives_features)
        # those of a pass, and of the nodes that may be committed after it
        nbytes = 4 * n_layers * width * (n_rows + shape.n_outputs)
        return (MemoryRow("target", f"features ({n_layers} layers)", nbytes),)
