"""Chooses the contexts that a GGUF model may be loaded with: nodes, prompt batches, lines, cells.

Asks a model that was opened without weights. Knows what would change a text; `measuring` makes plan
rows of the sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgespec.registry import ModelRequest
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context import contexts, windows
from edgespec_runtimes.gguf.context.recurrent import MAX_LAG
from edgespec_runtimes.gguf.file.architectures import Trait, has
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.kernels.invariant_kernels import (
    MIN_TILED_BATCH,
    TILE_ROWS,
    TILED_CACHE_TYPES,
)
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.weights.packing import (
    LEAST_BATCH_SIZE,
    has_prompt_tiles,
)

BATCH_SIZES = (512, MIN_TILED_BATCH)
"""Prompt batch sizes in tokens for every target; budgets that afford neither may have smaller ones
if the text does not depend on them."""
MAX_LINE = 8
"""Most guesses in a line that a recurrent target verifies; if it can roll back, it keeps one state
per guess."""
MAX_LINES = 4
"""Most lines of a tree that a recurrent target verifies in a pass, each with its own states."""


class ContextChoice:
    """A model as the engine sees it, and the contexts that a plan chooses from with their sizes."""

    def __init__(
        self,
        request: ModelRequest,
        options: GgufOptions,
        header: GgufFile,
        guesses_with_target: bool,
        model: loading.Model,
    ) -> None:
        """`guesses_with_target`: the model is a head, which keeps all that it has read."""
        self._request = request
        self._options = options
        self._header = header
        self._guesses_with_target = guesses_with_target
        self._state = contexts.StateSupport(0, False)
        self._n_gpu_layers = options.gpu_layers_of(request.owner)
        self.is_remote = bool(options.servers_of(request.owner))
        """True if servers compute the model."""
        self.n_window = model.n_window
        """Size of the sliding attention window in tokens; 0 if there is none."""
        self.info = self._describe(model)
        self.contexts = self._measured(model)
        """The contexts, largest first."""

    @property
    def texts_alter_prompts(self) -> bool:
        """True if a prompt rounds otherwise where the model holds several texts."""
        return self._has_prompt_tiles and not self._can_align

    @property
    def _has_prompt_tiles(self) -> bool:
        """True if prompts are computed in tiles if texts are aligned with them: those of products
        always, those of attention where they can be, and a text can be read again."""
        cache_types = {self._options.cache_type_k, self._options.cache_type_v}
        attention = self._can_align and self.info.tree_capable and cache_types <= TILED_CACHE_TYPES
        return has_prompt_tiles(self._header, attention)

    @property
    def _can_align(self) -> bool:
        """True if several texts can be aligned with tiles of attention.

        llama.cpp could write over cells outside the windows of sliding-window layers meanwhile.
        """
        return self._is_on_cpu and not self.n_window

    def may_hold_texts(self, tree_capable: bool) -> bool:
        """True if the model can hold several texts.

        It cannot if the number of KV cells affects its results, if it has none, or if servers
        compute it.
        """
        return tree_capable and not self.is_remote and not self._depends_on_size

    @property
    def _depends_on_size(self) -> bool:
        """True if the number of KV cells affects its results (longrope)."""
        return any("rope_factors_long" in name for name in self._header.tensors_by_name)

    def _describe(self, model: loading.Model) -> ModelInfo:
        request = self._request
        n_ctx = request.ctx_size or min(model.n_ctx_train, max(request.max_ctx, request.n_cells))
        request.check_context(n_ctx, model.n_ctx_train)
        tree_capable = model.tree_capable
        wanted = min(MAX_LINE, request.max_nodes - 1) * request.must_guess
        is_draft = request.owner == "draft"
        if not tree_capable and not is_draft and wanted:
            self._state = contexts.state_support(model, wanted)
        longest, n_lines = self._state.n_rollback, 1
        if self._state.can_copy and not self.is_remote:
            longest = longest or wanted
            most = 1 if has(self._header, Trait.ONE_SEQUENCE) else MAX_LINES
            n_lines = min(most, request.max_branches, (request.max_nodes - 1) // longest)
        max_nodes, max_branches = request.max_nodes, request.max_branches
        if not tree_capable and is_draft:  # lines grow a row a step, in sequences of their own
            max_branches = min(MAX_LINES, max_branches)
        elif not tree_capable:
            max_nodes, max_branches = 1 + n_lines * longest, n_lines
        n_slots = request.n_slots if self.may_hold_texts(tree_capable) else 1
        return ModelInfo(
            name=self._header.name,
            architecture=self._header.architecture,
            n_vocab=model.n_vocab,
            n_ctx=n_ctx,
            n_layers=model.n_layers,
            size_bytes=self._header.weight_bytes,
            tree_capable=tree_capable,
            max_rollback=longest,
            max_nodes=max_nodes,
            max_branches=max_branches,
            n_slots=n_slots,
            n_cells=max(n_ctx, request.n_cells * (n_slots > 1)) * (request.owner == "target"),
            max_ctx=0 if self._depends_on_size else model.n_ctx_train,
            gives_features=True,
            copies_features=not has(self._header, Trait.SHOWS_INPUTS),
        )

    def _measured(
        self, model: loading.Model
    ) -> list[tuple[contexts.ContextShape, contexts.ContextSizes]]:
        """Contexts to choose from, largest first; they differ in nodes per pass and batch size.

        All have exactly the requested number of cells, because some models' text depends on it, and
        no tree grows past the context.
        """
        request, info = self._request, self.info
        given = request.batch_size and max(request.batch_size, self._least_tiled_batch)
        batch_sizes = [given] if given else BATCH_SIZES
        if request.owner == "draft" and not self._n_gpu_layers:  # larger ones save no passes
            batch_sizes = [min(given or TILE_ROWS, TILE_ROWS)]
        numbers = self._numbers_of_nodes
        choices = [
            (max_nodes, n_batch)
            for max_nodes in numbers
            for n_batch in dict.fromkeys(min(size, info.n_ctx) for size in batch_sizes)
        ]
        if self._may_read_in_small_batches:
            is_tiled = self._has_prompt_tiles or sys.platform != "linux"
            n_batch = TILE_ROWS if is_tiled else LEAST_BATCH_SIZE
            choices += [(numbers[-1], n_batch)] * (n_batch < choices[-1][1])
        # those of a recurrent draft's lines, each of which has what leads to it
        has_line_cells = request.owner == "draft" and not info.tree_capable
        shapes = [
            contexts.ContextShape(
                n_ctx=info.n_ctx + has_line_cells * MAX_LINES * 2 * MAX_LAG,
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
                n_shared=info.n_cells if info.n_slots > 1 else 0,
                frees_cells=self._frees_cells,
                tile=self._tile,
                prompts_in_tiles=self._has_prompt_tiles and (info.n_slots == 1 or self._tile > 1),
            )
            for max_nodes, n_batch in choices
        ]
        return [(shape, contexts.context_sizes(model, shape)) for shape in shapes]

    @property
    def _least_tiled_batch(self) -> int:
        """Fewest tokens of a batch with which a prompt is computed in tiles, and so has the text
        that it has with larger ones; 1 if it is not computed in tiles."""
        is_tiled = self._request.owner == "target" and self.info.tree_capable and self._is_on_cpu
        if not is_tiled or not self._has_prompt_tiles:
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
            and (self.info.n_slots == 1 or not self._has_prompt_tiles)
            and self._is_on_cpu
        )

    @property
    def _is_on_cpu(self) -> bool:
        """True if all layers are computed here, by kernels that round rows alike."""
        return not self._n_gpu_layers and not self.is_remote

    @property
    def _tile(self) -> int:
        """Cells of a tile that texts must be aligned with; a draft's rounding changes no text."""
        is_target, has_several = self._request.owner == "target", self.info.n_slots > 1
        is_needed = is_target and has_several and self._has_prompt_tiles
        return TILE_ROWS if is_needed and self._can_align else 1

    @property
    def _frees_cells(self) -> bool:
        """True if sliding-window layers can free cells outside all windows: their cache must be in
        the process's memory, with the values of a token contiguous, and no text be stored."""
        return (
            windows.is_supported()
            and self.info.tree_capable
            and self._is_on_cpu
            and not self._guesses_with_target
            and not self._request.stores_prefixes
        )

    @property
    def _numbers_of_nodes(self) -> Sequence[int]:
        """Values of `max_nodes` to choose from, largest first.

        If tiles, which round differently, cannot be avoided, there are none that change the text.
        """
        if not self._request.fewer_nodes:
            return [self.info.max_nodes]
        if not self.info.tree_capable and self._request.owner == "target":
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
