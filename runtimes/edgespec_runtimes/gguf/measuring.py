"""Measures the memory needs of a GGUF model: contexts, plan rows, and tensors on devices.

Sizes come from a model opened without weights, the order of weights from a mapping that is not
read. Nothing stays loaded. The module is longer than others, because one class adds up a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.memory.budget import LOADING, MemoryRow
from edgespec.memory.heap import allocated_bytes
from edgespec.memory.needs import BatchNeeds, ModelNeeds
from edgespec.ports.kept_features import check_layers, feature_bytes, no_features
from edgespec.runtimes import GpuMemory, ModelRequest
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context import contexts, windows
from edgespec_runtimes.gguf.context.recurrent import MAX_LAG, N_CHECKPOINTS
from edgespec_runtimes.gguf.features import gives_inputs
from edgespec_runtimes.gguf.file.architectures import WHOLE_TEXT, unfit
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.heads import is_head
from edgespec_runtimes.gguf.file.mtp import can_guess, skipped
from edgespec_runtimes.gguf.kernels.packer import PIECE_BYTES
from edgespec_runtimes.gguf.kernels.reference_kernels import MIN_TILED_BATCH, TILE_ROWS
from edgespec_runtimes.gguf.llama import devices, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.llama.token_ids import TokenIds
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.weights import row_tables
from edgespec_runtimes.gguf.weights.experts import expert_sizes
from edgespec_runtimes.gguf.weights.mapped_weights import MappedWeights
from edgespec_runtimes.gguf.weights.offloading import (
    Offloading,
    offloading,
    place_layers,
    to_servers,
)
from edgespec_runtimes.gguf.weights.packing import packed_matrices, resident_weights
from edgespec_runtimes.gguf.weights.rounding import has_prompt_tiles, least_batch_size

BATCH_SIZES = (512, MIN_TILED_BATCH)
"""Prompt batch sizes in tokens for every model; budgets that afford neither may have smaller ones
if the text does not depend on them."""
ID_STEP_BYTES = 64 << 10
"""Rounding step of the size of a model without weights and tokenizer: malloc's count differs by a
few KiB between processes, and all must report the same smallest budget."""
MAX_LINE = 8
"""Most guesses in a line that a recurrent target verifies; if it can roll back, it keeps one state
per guess."""
ONE_LINE = ("plamo2",)
"""Architectures for which llama.cpp aborts if a pass has several sequences."""
KV_CACHE = "KV cache"
"""Label of plan rows for keys and values."""
MAX_LINES = 4
"""Most lines of a tree that a recurrent target verifies in a pass, each with its own states."""


class MeasuredGguf:
    """Memory needs of a model, measured on construction; those that need a mapping, on demand."""

    def __init__(
        self,
        request: ModelRequest,
        header: GgufFile,
        stop: AbortFlag,
        mapping: Callable[[], AbstractContextManager[None]],
        lender: Any = None,
        mtp: bool = False,
        mapped: MappedWeights | None = None,
    ) -> None:
        """`mapping` returns a context manager for each mapping, which measures its time. `mapped`
        are the weights of the same file if another request was measured before.

        `lender` is a context of the target whose matrices a head uses. With `mtp`, `header` is the
        part of a target's file with its prediction layers.
        """
        self.feature_layers: Sequence[int] = ()
        self._state = contexts.StateSupport(0, False)
        self._request = request
        self._options = GgufOptions.of(request.options)
        self._header = header
        self._guesses_with_target = lender is not None or mtp or is_head(header)
        """True for heads, which keep all they have read."""
        before_bytes = allocated_bytes()
        sizes_only = loading.load_sizes_only(header.path, mtp, TokenIds.of(header))
        sizes_only.lender = lender
        taken_bytes = max(0, allocated_bytes() - before_bytes)
        self._id_bytes = -(-taken_bytes // ID_STEP_BYTES) * ID_STEP_BYTES
        try:
            if not sizes_only.autoregressive and not is_head(header):
                raise unfit(header, WHOLE_TEXT)
            self.n_window = sizes_only.n_window
            """Size of the sliding attention window in tokens; 0 if there is none."""
            self.info = self._describe(sizes_only)
            self.contexts = self._measure_contexts(sizes_only)
        finally:
            sizes_only.close()
        self.mapped = mapped or MappedWeights(header, lambda: self.offloading, stop, mapping)

    @cached_property
    def needs(self) -> ModelNeeds:
        owner, on_gpu = self._request.owner, self.offloading
        elsewhere = on_gpu.names | (skipped(self._header) if owner == "target" else frozenset())
        resident = resident_weights(self._header, elsewhere)
        kv_bytes = max(sizes.kv_bytes for _, sizes in self.contexts)
        held_bytes = kv_bytes - max(self._line_bytes(sizes) for _, sizes in self.contexts)
        n_slots, tokens = self.info.n_slots, f"{self.info.n_ctx} tokens"
        tokens = f"{n_slots} texts of {tokens}" if n_slots > 1 else tokens
        fixed = [MemoryRow(owner, f"{KV_CACHE} ({tokens})", held_bytes)]
        if on_gpu.has_own_memory:
            fixed = [] if on_gpu.has_cache else fixed
        else:
            fixed.append(MemoryRow(owner, "weights of layers on the GPU", on_gpu.nbytes))
        if nbytes := N_CHECKPOINTS * self.checkpoint_bytes:
            fixed.append(MemoryRow(owner, f"states at {N_CHECKPOINTS} turns", nbytes))
        if owner == "draft":  # the target's is open during planning, and part of the process's row
            fixed.append(MemoryRow(owner, "token ids", self._id_bytes))
        holds_texts = self._may_hold_texts(self.info.tree_capable)
        needs = ModelNeeds(
            fixed=tuple(fixed),
            batches=tuple(self._batch_needs(shape, sizes) for shape, sizes in self.contexts),
            resident=(
                MemoryRow(owner, "weights", resident.weights),
                MemoryRow(owner, LOADING, max(resident.loading, on_gpu.loading_bytes)),
            ),
            shared=(*on_gpu.rows, *self._isolation_rows),
            text_bytes=held_bytes // n_slots if holds_texts else 0,
            texts_alter_prompts=has_prompt_tiles(self._header) and not self._can_align,
        )
        if not self.info.tree_capable:
            needs = replace(needs, state_bytes=kv_bytes)
        if owner == "draft":
            return needs
        is_packed = bool(packed_matrices(self._header))
        return replace(
            needs,
            paged=(
                MemoryRow(owner, "norms and other small tensors", self.mapped.unpaged_bytes),
                *((MemoryRow(owner, "copy of what is packed", PIECE_BYTES),) * is_packed),
            ),
            cuts=tuple(tuple(group.size for group in groups) for groups in self.mapped.cuts),
            experts=expert_sizes(self.mapped.mixtures),
        )

    @cached_property
    def gpu_memory(self) -> GpuMemory | None:
        """Total memory of the GPUs that get layers, without memory of RPC servers or memory shared
        with the process."""
        on_gpu = self.offloading
        has_gpu = on_gpu.names and not on_gpu.placement.servers and on_gpu.has_own_memory
        return devices.memory_of_gpus() if has_gpu else None

    def place(self, gpu_bytes: int) -> Sequence[MemoryRow]:
        """Place the requested layers; returns their rows. Raises BudgetError if they do not fit."""
        _, sizes = max(self.contexts, key=lambda one: one[1].total)
        return place_layers(
            self._header,
            self._request.owner,
            self._n_gpu_layers,
            self.info.n_layers,
            (sizes.kv_bytes, sizes.compute_bytes),
            gpu_bytes,
        )

    def offer_features(self, layers: Sequence[int], n_values: int) -> None:
        width = self._header.integer(self._header.key("embedding_length"), 0)
        if self.is_remote:
            reason = "it is computed in a process of its own, which does not hand them out"
            raise no_features(self.info, reason)
        is_end = self._shows_its_end(layers)
        check_layers(self.info, width, () if is_end else layers, n_values)
        self.feature_layers = tuple(layers)

    @property
    def gives_features(self) -> bool:
        """True if llama.cpp's graph gives the inputs of `feature_layers` itself."""
        is_end = self._shows_its_end(self.feature_layers)
        return is_end or gives_inputs(self._header.architecture)

    def _shows_its_end(self, layers: Sequence[int]) -> bool:
        """True if `layers` is the input of the model's own prediction layers."""
        return tuple(layers) == (self.info.n_layers,) and can_guess(self._header)

    @cached_property
    def offloading(self) -> Offloading:
        servers = self._options.servers_of(self._request.owner)
        if not servers:
            return offloading(self._header, self._n_gpu_layers)
        return to_servers(
            self._header,
            devices.of_servers(servers),
            self._n_gpu_layers or None,
            max(sizes.kv_bytes for _, sizes in self.contexts),
            max(sizes.compute_bytes for _, sizes in self.contexts),
        )

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint of a target's recurrent state, which is kept at prompt ends."""
        is_target = self._request.owner == "target"
        return max(sizes.state_bytes for _, sizes in self.contexts) if is_target else 0

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token, at least."""
        return min(-(-sizes.kv_bytes // shape.n_cells) for shape, sizes in self.contexts)

    @property
    def unplanned(self) -> int:
        """Index of the context for loading without a plan: one line, as nothing is paged."""
        branches = [shape.n_branches for shape, _ in self.contexts]
        return 0 if self.info.tree_capable else branches.index(min(branches))

    @property
    def is_remote(self) -> bool:
        return bool(self._options.servers_of(self._request.owner))

    def _describe(self, model: loading.Model) -> ModelInfo:
        request = self._request
        n_ctx = request.ctx_size or min(model.n_ctx_train, request.max_ctx)
        if n_ctx > model.n_ctx_train:
            raise UsageError(
                f"--ctx-size {n_ctx:,} is more than the {model.n_ctx_train:,} tokens that "
                f"{request.path.name} was trained on"
            )
        tree_capable = model.tree_capable
        wanted = min(MAX_LINE, request.max_nodes - 1)
        # a draft evaluates guesses one by one, and can only drop tokens evaluated together
        if not tree_capable and request.owner == "target" and wanted:
            self._state = contexts.state_support(model, wanted)
        longest, n_lines = self._state.n_rollback, 1
        if self._state.can_copy and not self.is_remote:
            longest = longest or wanted
            most = 1 if self._header.architecture in ONE_LINE else MAX_LINES
            n_lines = min(most, request.max_branches, (request.max_nodes - 1) // longest)
        return ModelInfo(
            name=self._header.name or request.path.stem,
            architecture=self._header.architecture,
            n_vocab=model.n_vocab,
            n_ctx=n_ctx,
            n_layers=model.n_layers,
            size_bytes=self._header.weight_bytes,
            tree_capable=tree_capable,
            max_rollback=longest,
            max_nodes=request.max_nodes if tree_capable else 1 + n_lines * longest,
            max_branches=request.max_branches if tree_capable else n_lines,
            n_slots=request.n_slots if self._may_hold_texts(tree_capable) else 1,
        )

    def _may_hold_texts(self, tree_capable: bool) -> bool:
        """True if the model can hold several texts.

        It cannot if the number of KV cells affects its results, if it has none, or if it runs in a
        child process.
        """
        names = self._header.tensors_by_name
        return (
            tree_capable
            and not self.is_remote
            and not any("rope_factors_long" in name for name in names)
        )

    def _measure_contexts(
        self, model: loading.Model
    ) -> list[tuple[contexts.ContextShape, contexts.ContextSizes]]:
        """Contexts to choose from, largest first; they differ in nodes per pass and batch size.

        All have exactly the requested number of cells, because some models' text depends on it, and
        no tree grows past the context.
        """
        request, info = self._request, self.info
        given = request.batch_size and max(request.batch_size, self._least_tiled_batch)
        batch_sizes = [given] if given else BATCH_SIZES
        numbers = self._numbers_of_nodes
        choices = [
            (max_nodes, n_batch)
            for max_nodes in numbers
            for n_batch in dict.fromkeys(min(size, info.n_ctx) for size in batch_sizes)
        ]
        if self._may_read_in_small_batches:
            n_batch = least_batch_size(self._header, tiles_are_avoidable=sys.platform == "linux")
            choices += [(numbers[-1], n_batch)] * (n_batch < choices[-1][1])
        shapes = [
            contexts.ContextShape(
                n_ctx=info.n_ctx,
                n_batch=n_batch,
                n_outputs=max_nodes,
                n_branches=self._n_branches(max_nodes),
                n_threads=loading.useful_threads(self._header.weight_bytes, request.n_threads),
                cache_type_k=self._options.cache_type_k,
                cache_type_v=self._options.cache_type_v,
                flash_attn=self._options.flash_attn,
                n_rollback=self._state.n_rollback,
                line_rows=self._rows_of_a_line,
                has_spare=info.tree_capable or request.stores_prefixes,
                n_slots=info.n_slots,
                frees_cells=self._frees_cells,
                tile=self._tile,
            )
            for max_nodes, n_batch in choices
        ]
        return [(shape, contexts.context_sizes(model, shape)) for shape in shapes]

    @property
    def _least_tiled_batch(self) -> int:
        """Fewest tokens of a batch with which a prompt is computed in tiles, and so has the text
        that it has with larger ones; 1 if it is not computed in tiles."""
        is_tiled = self._request.owner == "target" and self.info.tree_capable and self._is_on_cpu
        if not is_tiled or not has_prompt_tiles(self._header):
            return 1
        may_go_back = self.info.n_slots == 1 and not self.n_window
        return TILE_ROWS if may_go_back else MIN_TILED_BATCH

    @property
    def _may_read_in_small_batches(self) -> bool:
        """True if the text stays the same if a prompt is read in batches of less than two tiles,
        some of whose rows are computed twice; layers with windows may have freed their cells."""
        return (
            self._request.owner == "target"
            and not self._request.batch_size
            and self.info.tree_capable
            and not self.n_window
            and (self.info.n_slots == 1 or not has_prompt_tiles(self._header))
            and self._is_on_cpu
        )

    @property
    def _is_on_cpu(self) -> bool:
        """True if all layers are computed here, by kernels that round rows alike."""
        is_here = not self._n_gpu_layers and not self.is_remote
        return is_here and self._options.flash_attn != "off"

    @property
    def _can_align(self) -> bool:
        """True if several texts can be aligned with tiles of attention.

        llama.cpp could write over cells outside the windows of sliding-window layers meanwhile.
        """
        return self._is_on_cpu and not self.n_window

    @property
    def _tile(self) -> int:
        """Cells of a tile that texts must be aligned with; a draft's rounding changes no text."""
        is_target, has_several = self._request.owner == "target", self.info.n_slots > 1
        is_needed = is_target and has_several and has_prompt_tiles(self._header)
        return TILE_ROWS if is_needed and self._can_align else 1

    @property
    def _frees_cells(self) -> bool:
        """True if sliding-window layers can free cells outside all windows: their cache must be in
        the process's memory, with the values of a token contiguous."""
        return (
            windows.is_supported()
            and self.info.tree_capable
            and self._options.flash_attn != "off"
            and not self._n_gpu_layers
            and not self.is_remote
            and not self._guesses_with_target
        )

    @property
    def _numbers_of_nodes(self) -> Sequence[int]:
        """Values of `max_nodes` to choose from, largest first.

        If tiles, which round differently, cannot be avoided, there are none that change the text.
        """
        if not self._request.fewer_nodes:
            return [self.info.max_nodes]
        if not self.info.tree_capable:
            return [*dict.fromkeys((self.info.max_nodes, 1 + self.info.max_rollback))]
        numbers = (self.info.max_nodes, *self._request.fewer_nodes)
        tiles_are_avoidable = sys.platform == "linux" and not self.is_remote
        return [n for n in numbers if tiles_are_avoidable or n < TILE_ROWS]

    def _n_branches(self, max_nodes: int) -> int:
        """Most branches of a tree with `max_nodes` nodes."""
        if self.info.tree_capable or not self.info.max_rollback:
            return min(self.info.max_branches, max_nodes)
        return min(self.info.max_branches, (max_nodes - 1) // self.info.max_rollback)

    @property
    def _rows_of_a_line(self) -> int:
        """Most rows of a line: the root, its guesses, and committed tokens missing in the state."""
        longest = self.info.max_rollback
        if self.info.tree_capable or not longest:
            return 0
        return 1 + longest + (longest if self._state.n_rollback else MAX_LAG)

    @property
    def _n_gpu_layers(self) -> int:
        return self._options.gpu_layers_of(self._request.owner)

    def _batch_needs(
        self, shape: contexts.ContextShape, sizes: contexts.ContextSizes
    ) -> BatchNeeds:
        owner = self._request.owner
        rows = (
            MemoryRow(owner, "compute buffers", sizes.compute_bytes),
            MemoryRow(owner, "compute graphs", sizes.graph_bytes),
            MemoryRow(owner, f"logits ({shape.n_outputs} nodes)", self._logits_bytes(sizes)),
            *self._feature_rows(shape),
            *self._line_rows(shape, sizes),
        )
        if owner == "draft":
            return BatchNeeds(shape.n_batch, rows, max_nodes=shape.n_outputs)
        paged = MemoryRow(owner, "embedding rows", self._embedding_bytes(shape))
        is_small = not self._request.batch_size and shape.n_batch < min(
            self.info.n_ctx, *BATCH_SIZES
        )
        return BatchNeeds(shape.n_batch, rows, (paged,), shape.n_outputs, is_small)

    def _logits_bytes(self, sizes: contexts.ContextSizes) -> int:
        """Bytes of llama.cpp's output buffer, and of the copies that some passes need of it."""
        several = self._request.owner == "draft" and self.info.n_slots > 1
        is_copied = several or self._guesses_with_target or not self.info.tree_capable
        return (1 + is_copied) * sizes.output_bytes

    def _line_rows(
        self, shape: contexts.ContextShape, sizes: contexts.ContextSizes
    ) -> tuple[MemoryRow, ...]:
        """Plan rows for the states of further lines, and for the buffer that restores a state."""
        if self.info.tree_capable or shape.n_branches == 1:
            return ()
        what, nbytes = f"states of {shape.n_branches} lines", self._line_bytes(sizes)
        if shape.n_rollback:
            nbytes += sizes.state_bytes
        return (MemoryRow(self._request.owner, what, nbytes),)

    def _line_bytes(self, sizes: contexts.ContextSizes) -> int:
        """Bytes of a context's states for the lines of a tree after the first."""
        if self.info.tree_capable:
            return 0
        return sizes.kv_bytes - min(sizes.kv_bytes for _, sizes in self.contexts)

    def _feature_rows(self, shape: contexts.ContextShape) -> tuple[MemoryRow, ...]:
        if not self.feature_layers:
            return ()
        width = self._header.integer(self._header.key("embedding_length"), 0)
        n_layers = len(self.feature_layers)
        # the graph holds all rows, and llama.cpp a copy
        n_rows = shape.largest_batch * (1 + self.gives_features)
        nbytes = feature_bytes(n_layers, width, n_rows, shape.n_outputs)
        return (MemoryRow("target", f"features ({n_layers} layers)", nbytes),)

    @property
    def _isolation_rows(self) -> tuple[MemoryRow, ...]:
        """Plan rows of the child process of a target on RPC servers, and of its logits."""
        if not self.is_remote:
            return ()
        logits_bytes = max(sizes.output_bytes for _, sizes in self.contexts)
        nbytes = process.round_up_to_step(self.offloading.process_bytes + logits_bytes)
        return (MemoryRow("process", "process of the target", nbytes),)

    def _embedding_bytes(self, shape: contexts.ContextShape) -> int:
        tables = [weight for weight in self.mapped.traced if weight.looked_up]
        n_rows = shape.largest_batch
        return sum(row_tables.bytes_for(w.entry, n_rows * w.rows_per_token) for w in tables)
