"""Models on llama.cpp behind the engine's port: draft or target, resident or paged.

`context.rows` assembles the rows of a pass, `context.sequences` assigns branches to sequences, and
`weights` provides the weights. The module is longer than others, because one class is the port.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled, EdgespecError, UsageError, setting
from edgespec.pool import Pool
from edgespec.ports import PassPart, Progress, StateOrigin, Take, Vocabulary
from edgespec.tracing.spans import OFF, Track
from edgespec.values import ModelInfo
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.context.cache_memory import CacheMemory
from edgespec_runtimes.gguf.context.cell_order import Texts
from edgespec_runtimes.gguf.context.cells import LlamaMemory
from edgespec_runtimes.gguf.context.recurrent import RecurrentText
from edgespec_runtimes.gguf.context.recurrent_draft import RecurrentDraft
from edgespec_runtimes.gguf.context.rows import RowBatch, Rows, fill, in_order, rows_of
from edgespec_runtimes.gguf.context.sequences import HOME
from edgespec_runtimes.gguf.context.windows import is_supported
from edgespec_runtimes.gguf.feature_tap import FeatureTap
from edgespec_runtimes.gguf.file.architectures import Trait, architecture
from edgespec_runtimes.gguf.kept_texts import KeptTexts, block_tokens
from edgespec_runtimes.gguf.kernels.invariant_kernels import (
    MIN_TILED_BATCH,
    TILE_ROWS,
    InvariantKernels,
)
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.llama.openmp import spinning_threads
from edgespec_runtimes.gguf.weights.paged import PagedWeights

if TYPE_CHECKING:
    from edgespec_runtimes.gguf.measuring import MeasuredGguf

_ABORTED = 2
_address_of_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ("llama_get_logits", lib._lib)
)


@dataclass(frozen=True, slots=True)
class Opening:
    """Parts with which a model is opened; it owns `model` and `weights`."""

    prepared: MeasuredGguf
    model: loading.Model
    shape: contexts.ContextShape
    info: ModelInfo
    vocabulary: Vocabulary
    origin: StateOrigin
    weights: PagedWeights | None = None
    n_embedded: int = 0
    """Values of the embeddings that it is given in place of tokens; 0 for tokens."""


class GgufModel(KeptTexts):
    """A loaded GGUF model."""

    _weights: PagedWeights | None
    _tap: FeatureTap | None = None

    def __init__(self, opening: Opening) -> None:
        model, shape, weights = opening.model, opening.shape, opening.weights
        prepared = opening.prepared
        super().__init__(opening.vocabulary, opening.origin, prepared.stop, model.users)
        self._model, self._shape, self._weights = model, shape, weights
        self._trace = OFF if prepared.is_draft else prepared.request.trace
        callback = weights.callback if weights else None
        if layers := prepared.feature_layers:
            sizes, inner = (shape.largest_batch, model.n_embd), weights.on_node if weights else None
            how = inner, prepared.gives_features
            self._tap = FeatureTap(layers, model.n_layers, sizes, *how)
            callback = self._tap.callback or callback
        self._kernels = InvariantKernels(
            prepared.invariant_types,
            (shape.cache_type_k, shape.cache_type_v),
            weights.packed if weights else (),
        )
        windows = contexts.windows_of(model, shape)
        fills = model.tree_capable and is_supported() and not windows
        caches = CacheMemory() if fills else windows
        with self._kernels.creating(weights.backends if weights else ()):
            self._context: Any = contexts.new_context(model, shape, callback, prepared.stop, caches)
        self._windows = windows if windows and windows.tensors else None
        if self._tap is not None:
            self._tap.begin(self._context)
        n_branches = shape.n_branches - 1
        spare = shape.n_slots + n_branches + (shape.tile > 1)
        self._memory = LlamaMemory(self._context, spare, caches, is_hybrid=model.is_hybrid)
        fill: tuple[Any, ...] = ()
        if fills and caches and caches.tensors:
            fill = (caches,)
            if weights:  # which have had its memory
                weights.context = caches.size(shape.n_cells)
                fill = caches, weights.fill_context
        cells = self._memory, self._windows, shape.tile
        self._texts = Texts(shape.n_slots, n_branches, shape.n_cells, *cells, *fill)
        if prepared.is_draft and not model.tree_capable:
            sizes = shape.n_seq, shape.largest_batch
            self._recurrent: RecurrentText = RecurrentDraft(self._texts, *sizes)
        else:
            rolls_back = shape.n_rollback > 0
            self._recurrent = RecurrentText(self._texts, prepared.checkpoint_bytes, rolls_back)
        self._most_logits = shape.n_rows, model.n_vocab
        self._batch = RowBatch(shape.largest_batch, shape.n_seq, opening.n_embedded)
        self._threads = spinning_threads() if shape.n_threads > 1 else None
        self._prompts_are_invariant = prepared.prompts_are_invariant
        self.info = self._described(opening)

    def _described(self, opening: Opening) -> ModelInfo:
        """The model as the engine sees it."""
        model, shape, weights, info = opening.model, opening.shape, opening.weights, opening.info
        is_draft, takes_trees = opening.prepared.is_draft, model.tree_capable
        is_invariant = self._prompts_are_invariant
        graph = architecture(info.architecture).traits
        gives_logits = is_invariant and Trait.FIRST_LOGITS not in graph
        shares = gives_logits and (shape.n_slots > 1 or not takes_trees)
        # recurrent state can be stored apart from keys and values
        keeps = shape.can_save or not model.has_attention
        has_blocks = takes_trees or (keeps and model.has_attention)
        n_block = block_tokens(opening.prepared.token_bytes, model.n_window)
        # below MIN_TILED_BATCH some rows are computed twice
        goes_back = takes_trees and shape.n_slots == 1 and not self._windows
        least_batch = min(info.n_ctx, TILE_ROWS if goes_back else MIN_TILED_BATCH)
        has_tiles = is_invariant and shape.n_batch >= least_batch
        info = replace(
            info,
            prompt_batch=shape.n_batch,
            n_slots=shape.n_slots,
            prompts_share_passes=is_draft or (shares and self._tap is None),
            prompts_give_logits=gives_logits and takes_trees,
            prompt_tile=self._kernels.prompt_tile(shape.prompts_in_tiles) if has_tiles else 0,
            used_share=weights.used_share if weights else info.used_share,
            adjusts=weights is not None,
            # layers with windows may have freed a block
            block_tokens=n_block if has_blocks and not self._windows else 0,
            needs_checkpoints=not takes_trees and keeps,
        )
        if takes_trees or not is_draft:
            return info
        n_lines = max(1, shape.n_branches - 1)  # and the root's state
        whole = replace(info, tree_capable=True, max_branches=n_lines)
        return replace(whole, block_tokens=0, needs_checkpoints=False)

    @property
    def paged_tensors(self) -> Mapping[str, int]:
        """Addresses of its paged tensors by name."""
        return self._weights.tensors if self._weights else {}

    def committed_of(self, slot: int) -> int:
        return self._texts.all[slot].n_committed + len(self._recurrent.lag)

    def _read(self, tokens: Sequence[int], slot: int = 0, progress: Progress | None = None) -> None:
        tokens = [*self._recurrent.lag, *tokens]
        start = self._texts.all[slot].n_committed
        self._check_room(start + len(tokens))
        with self._running():
            for part in self._recurrent.parts(tokens, start):
                self._read_in_batches(part, self._texts.all[slot].n_committed, progress, slot)
                self._model.wait(self._context)
                if not self._model.tree_capable:
                    self._recurrent.end_prompt()

    def _read_to_root(self, part: PassPart, progress: Progress | None) -> np.ndarray:
        tokens = [*part.reads, int(part.pool.token[part.nodes[0]])]
        start = self.committed_of(part.slot)
        self._check_room(start + len(tokens))
        with self._running():
            self._read_in_batches(tokens, start, progress, part.slot, part.pool, part.nodes)
            return self._logits(1)

    def _read_in_batches(
        self,
        tokens: Sequence[int],
        start: int,
        progress: Progress | None,
        slot: int,
        pool: Pool | None = None,
        nodes: Sequence[int] = (),
    ) -> None:
        """Append `tokens` to a text, but for the last one if it is the node of `nodes`."""
        tile = self.info.prompt_tile
        in_tiles = start + len(tokens) >= tile if tile else not self._prompts_are_invariant
        is_part = self.info.prompts_share_passes and not in_tiles
        texts, branches = self._texts, self._texts.all[slot]
        if not is_part:
            branches.ends.add(start)
        n_batch = self._shape.n_batch
        if not in_tiles and pool is not None:
            n_batch = self.info.max_rows
        prompt = self._prompt_batches(tokens, n_batch, progress, tile if in_tiles else 0)
        for begin, chunk, report in prompt:
            size = len(chunk)
            n_again = branches.n_committed - start - begin if in_tiles else 0
            if n_again:  # rows that fill a tile
                texts.truncate({slot: start + begin})
            positions = range(branches.n_committed, branches.n_committed + size)
            is_tiled = in_tiles and size >= texts.tile > 1
            texts.make_room(size, branches if is_tiled else None)
            rows = Rows(chunk, [*positions], [[branches.home]] * size)
            n_read = size - (pool is not None and begin + size == len(tokens))
            self._kernels.prepare(size, texts.top + size, in_tiles)
            self._decode(rows, range(n_read, size), {slot: branches.n_committed}, report)
            if is_part:
                branches.read(n_read)
            else:
                branches.extend(n_read)
            if pool is not None and n_read < size:
                branches.place(pool, nodes)
            if self._tap is not None and slot == 0:
                n_known = max(n_again, min(size, max(0, len(self._recurrent.lag) - begin)))
                known = range(n_known, n_read)
                self._tap.hand_over_rows(positions.start + n_known, known)
                if pool is not None and n_read < size:
                    self._tap.keep_rows({int(pool.key[nodes[0]]): n_read})
            if not self._model.tree_capable:
                self._recurrent.end_batch()
        if not is_part:
            branches.ends.add(branches.n_committed)

    def _evaluate(self, parts: Sequence[PassPart]) -> list[np.ndarray]:
        n_nodes = n_rows = 0
        for part in parts:
            n_nodes += len(part.nodes)
            n_rows += len(part.nodes) + len(part.reads)
        if n_rows < 1 or n_nodes > self.info.max_nodes:
            raise UsageError(f"evaluate takes 1 to {self.info.max_nodes} nodes, not {n_nodes}")
        if n_rows > self.info.max_rows:
            raise UsageError(f"a pass takes up to {self.info.max_rows} rows, not {n_rows}")
        if not self._model.tree_capable:
            return [self._evaluate_lines(parts[0])]
        with self._running():
            self._texts.make_room(n_rows)
            committed = {p.slot: self._texts.all[p.slot].n_committed for p in parts}
            begin = self._texts.top
            try:
                rows = rows_of(parts, self._texts)
            except UsageError:
                self._texts.truncate(committed)
                raise
            self._kernels.prepare(n_rows, begin + n_rows, in_tiles=False)
            self._decode(rows, range(rows.n_read, n_rows), committed)
            if self._tap is not None:
                self._tap.hand_over_rows(committed.get(0, 0), rows.first_reads)
                self._tap.keep_rows(rows.row_of_key)
            return in_order(self._logits(n_rows - rows.n_read), rows.orders)

    def _evaluate_lines(self, part: PassPart) -> np.ndarray:
        """`_evaluate` of a recurrent model's text."""
        lines, committed = self._recurrent, self.committed_of(0)
        with self._running():
            rows = lines.rows(part.pool, part.nodes, part.reads)
            if lines.must_catch_up(rows):
                self._decode_lines(lines.lag_rows(), (), committed)
                lines.take_in_lag()
                rows = lines.rows(part.pool, part.nodes, part.reads)
            n_lag = len(lines.lag)
            with_logits = sorted(rows.row_of.values())
            lines.copy_state()
            self._decode_lines(rows, with_logits, committed)
            lines.take_in()
            if self._tap is not None:
                self._tap.hand_over_rows(committed, range(n_lag, n_lag + len(part.reads)))
                keys = part.pool.key
                row_of_key = {int(keys[node]): row for node, row in rows.row_of.items()}
                self._tap.keep_rows(row_of_key)
            logits = self._logits(len(with_logits))
            order = {row: n for n, row in enumerate(with_logits)}
            return logits[[order[rows.row_of[node]] for node in part.nodes]]

    def _decode_lines(self, rows: Rows, with_logits: Collection[int], committed: int) -> None:
        n_rows = len(rows)
        self._kernels.prepare(n_rows, self._texts.top + n_rows, in_tiles=False)
        self._decode(rows, with_logits, {HOME: committed})

    def _logits(self, n_rows: int) -> np.ndarray:
        """Logits of the latest pass, valid until the next one."""
        return abi.float_rows(_address_of_logits(self._context), *self._most_logits)[:n_rows]

    def commit(
        self, pool: Pool, path: Sequence[int], keep: Sequence[int] = (), slot: int = 0
    ) -> None:
        with self._users:
            position = self.committed_of(slot)
            if self._model.tree_capable:
                self._texts.all[slot].commit(pool, path, keep)
            else:
                self._recurrent.commit(pool, path, keep)
            if self._tap is not None and slot == 0:
                keys = pool.key
                kept = {int(keys[node]) for node in keep} if keep else ()
                self._tap.commit(position, [int(keys[node]) for node in path], kept)

    def truncate(self, n_tokens: int, slot: int = 0) -> None:
        """Shorten the prefix.

        Recurrent states, and window layers that have freed earlier cells, can only be restored to
        the end of a prompt.
        """
        n_committed = self.committed_of(slot)
        if n_tokens > n_committed:
            raise UsageError(f"{n_tokens} tokens are more than the {n_committed} committed")
        with self._users:
            if self._tap is not None and slot == 0:
                self._tap.drop()
            if self._model.tree_capable:
                self._texts.go_back(slot, n_tokens)
            else:
                self._recurrent.truncate(n_tokens)

    def share(self, source: int, target: int, n_tokens: int) -> None:
        with self._users:
            self._texts.truncate({target: 0})
            self._texts.share(source, target, n_tokens)

    def give_features(self, layers: Sequence[int], take: Take) -> None:
        if self._tap is None or self._tap.layers != tuple(layers):
            raise UsageError(
                f"{self.info.name} was loaded without giving the inputs of its layers "
                f"{', '.join(map(str, layers))}: load it together with the head that reads them"
            )
        self._tap.give(take)

    def _release(self) -> None:
        super()._release()
        lib.llama_free(self._context)
        self._context = None
        close_all(self._model.close, *((self._weights.close,) if self._weights else ()))

    def _decode(
        self,
        rows: Rows,
        with_logits: Collection[int],
        committed: Mapping[int, int],
        on_segment: Callable[[float], None] | None = None,
    ) -> None:
        """Call llama_decode once; on failure, restore each text's prefix to `committed` tokens."""
        failure: BaseException | None = None
        code = 0
        n_rows, begun_s = len(rows.tokens), time.perf_counter()
        try:
            if self._tap is not None:
                self._tap.begin_pass(n_rows)
            if self._weights:
                self._weights.begin_pass(n_rows, on_segment)
            with self._kernels:
                code = self._compute(rows, with_logits)
            self._n_passes += 1
            self._n_rows += n_rows
        except BaseException as exc:  # noqa: BLE001 - rolled back first, raised below
            failure = exc
        finally:
            if self._weights:
                self._weights.end_pass()
                failure = failure or self._weights.failure
            if self._trace.is_on:
                end_s = time.perf_counter()
                self._trace.add(Track.TARGET, "pass", begun_s, end_s, tokens=n_rows)
        if failure is None and self._stop.is_set:
            failure = Cancelled("the model was asked to stop")
        if failure is None and code:
            failure = EdgespecError(_decode_failure(code))
        if failure is not None:
            self._roll_back(committed)
            raise failure

    def _compute(self, rows: Rows, with_logits: Collection[int]) -> int:
        """Compute a pass over `rows`; returns llama_decode's code."""
        fill(self._batch, rows, with_logits)
        with self._computing():
            return int(lib.llama_decode(self._context, self._batch.raw))

    def _computing(self) -> AbstractContextManager[None]:
        """Context manager in which llama.cpp's threads spin while they wait for each other, as far
        as that pays."""
        is_resident = self._weights is None
        return self._threads.computing(is_resident) if self._threads else nullcontext()

    def _roll_back(self, committed: Mapping[int, int]) -> None:
        if self._tap is not None and 0 in committed:
            self._tap.drop()
        if self._model.tree_capable:
            self._texts.truncate(committed)
        else:
            self._recurrent.go_back(committed[0])


def _decode_failure(code: int) -> str:
    if code == 1:
        return f"the KV cache is full: raise {setting.ctx_size} or shorten the prompt"
    if code == _ABORTED:
        return "llama.cpp aborted the computation"
    return f"llama.cpp failed to compute (code {code})"
