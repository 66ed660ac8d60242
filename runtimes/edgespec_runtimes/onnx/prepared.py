"""Prepares and loads ONNX decoders: validates the graph, computes its needs, loads by the plan.

The graph is read without its weights, and sessions with bound weights are created without them.
The module is longer than others, because one class answers for all steps of loading.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import onnxruntime as ort

from edgespec.errors import UsageError, setting
from edgespec.memory.budget import MIB, MemoryPlan, MemoryRow
from edgespec.memory.heap import trim_heap
from edgespec.memory.needs import ModelNeeds
from edgespec.paging.reader import WatchedFiles
from edgespec.ports import LanguageModel, Progress, StateOrigin
from edgespec.registry import GpuMemory, ModelRequest, PreparedModel, without_padding
from edgespec.tracing.spans import OFF
from edgespec.values import ModelInfo
from edgespec_runtimes.onnx.batches import Batcher
from edgespec_runtimes.onnx.cache import KeyValueCache
from edgespec_runtimes.onnx.decoder import Decoder
from edgespec_runtimes.onnx.files.roles import find_roles
from edgespec_runtimes.onnx.files.source_model import SourceModel, read_source, with_weights
from edgespec_runtimes.onnx.files.vocabulary import read_vocabulary
from edgespec_runtimes.onnx.graph.accuracy import set_accuracy
from edgespec_runtimes.onnx.graph.angles import trimmed
from edgespec_runtimes.onnx.graph.cutting import Cut, Piece
from edgespec_runtimes.onnx.graph.flow import PACKED, angle_switch, has_any, simplified
from edgespec_runtimes.onnx.graph.lookups import with_blocks_by_row, with_rows_fed
from edgespec_runtimes.onnx.graph.rewriting import compacted, pruned
from edgespec_runtimes.onnx.memory import decoder_needs
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.options import OnnxOptions
from edgespec_runtimes.onnx.ort.file_mappings import copy_mapped
from edgespec_runtimes.onnx.ort.sessions import OrtSession, StopFlag
from edgespec_runtimes.onnx.prepare import plan_rows
from edgespec_runtimes.onnx.prepare.deployment import Deployment
from edgespec_runtimes.onnx.prepare.details import context_length
from edgespec_runtimes.onnx.prepare.fitting import FittedDecoder
from edgespec_runtimes.onnx.prepare.measuring import MeasuredOnnx, made_by, measured
from edgespec_runtimes.onnx.prepare.notes import (
    half_precision_notes,
    measuring_notes,
    paging_notes,
    rounding_notes,
)
from edgespec_runtimes.onnx.prepare.providers import choose
from edgespec_runtimes.onnx.weights import artifacts
from edgespec_runtimes.onnx.weights.exchanging import ExchangingWeights, records
from edgespec_runtimes.onnx.weights.packed import PackedWeights
from edgespec_runtimes.onnx.weights.paged import EmbeddingTable, OnnxWeights, open_tables

SMALL_MODEL_BYTES = 64 * MIB
"""Size of weights below which a second thread costs more than it gains."""
TREES_OF_ROOM = 4
"""Number of trees for which there are cache slots beyond a full context."""
MOST_ROOM = 0.1
"""Largest share of a context that these slots may be of, where the cache has huge pages, with which
they take memory; with a larger share it has none, and unused slots take no memory."""


class PreparedOnnx(PreparedModel):
    """A prepared ONNX model.

    Call `read` first, and `place` before `needs`.
    """

    info: ModelInfo

    def __init__(self, request: ModelRequest) -> None:
        self.seconds = {}
        self._phase = partial(request.phase, seconds=self.seconds)
        self._request = request
        self._stop = StopFlag()
        self._options = OnnxOptions.of(request.options)
        self._choice = choose(self._options.provider)
        self._opened: Deployment | None = None

    def read(self, path: Path) -> None:
        """Read and validate the graph and the vocabulary, and plan the batches."""
        where = str(path)
        with self._phase("graph and vocabulary"):
            read = read_source(path)
            source = artifacts.as_bytes(read)
            self._graph = compacted(simplified(source.model, where))
            source = replace(source, model=self._graph)
            self._choose_accuracy()
            self._roles = find_roles(self._graph.graph, where)
            configs = (source.generation_config, source.config, source.genai_config)
            self._vocabulary = read_vocabulary(source.folder, self._roles.n_vocab, configs)
            self.info = self._describe(source)
            self._capacity = self.info.n_ctx + TREES_OF_ROOM * self.info.max_nodes
        with self._phase("cutting"):
            source = artifacts.aligned(source, self._is_stopped)
            self._source = trimmed(self._graph.graph, source, self._capacity)
            fit = partial(
                FittedDecoder,
                self._graph,
                self._roles,
                self._source,
                self._request,
                self.info.n_ctx,
                self._capacity,
            )
            self._opened = Deployment(self.info.name, self._n_threads, self._choice, fit)
        with self._phase("sessions"):
            # created before planning, so that unknown operators are refused now, and the memory of
            # a GPU's libraries is part of the process's measured memory
            self._opened.make_sessions()
            if self._opened.device.is_cpu:
                self._opened.close()  # only a paged target creates them again
        trim_heap()  # memory for reading the graph, before the process is measured

    @property
    def _deployed(self) -> Deployment:
        assert self._opened is not None
        return self._opened

    @property
    def gpu_memory(self) -> GpuMemory | None:
        device = self._deployed.device
        if device.is_cpu:
            return None
        return GpuMemory(device.label, device.total_bytes, device.free_bytes, device.reserved_bytes)

    def place(self, gpu_bytes: int) -> Sequence[MemoryRow]:
        """Put the model on the GPU whole, or not at all."""
        deployed, owner = self._deployed, self._request.owner
        weight_bytes = decoder_needs.device_bytes(list(self._source.weights.values()))
        buffer_bytes = deployed.buffer_bytes(self._cache_bytes)
        deployed.place(gpu_bytes, weight_bytes + buffer_bytes)
        if not deployed.max_bytes:
            return ()
        buffers = MemoryRow(owner, "compute buffers and cache in use", buffer_bytes)
        return (MemoryRow(owner, "weights", weight_bytes), buffers)

    @property
    def _has_sparse_cache(self) -> bool:
        return self._capacity > (1 + MOST_ROOM) * self.info.n_ctx

    @property
    def _cache_bytes(self) -> int:
        n_tokens = self.info.n_ctx if self._has_sparse_cache else self._capacity
        return n_tokens * self._roles.kv_token_bytes

    @property
    def enforced(self) -> bool:
        return sys.platform != "win32"

    def tokens(self) -> Sequence[bytes]:
        return without_padding(self._vocabulary.table)

    def needs(self) -> ModelNeeds:
        deployed, owner = self._deployed, self._request.owner
        measured = self._measured
        return ModelNeeds(
            fixed=plan_rows.fixed_rows(owner, self.info, self._cache_bytes),
            batches=tuple(
                plan_rows.batch_needs(owner, self.info, sizes) for sizes in deployed.batches
            ),
            resident=plan_rows.resident_rows(owner, deployed, measured),
            paged=plan_rows.paged_rows(deployed, measured),
            cuts=plan_rows.cuts(deployed, measured.sizes),
            shared=plan_rows.library_rows(deployed.device),
            text_bytes=self._cache_bytes,
        )

    @cached_property
    def _measured(self) -> MeasuredOnnx:
        """Memory of sessions; packed layers are paged by records from now on if they can."""
        deployed = self._deployed
        if not deployed.device.is_cpu:
            return MeasuredOnnx()
        with self._phase("measuring"):
            fitted = deployed.fitted
            found = measured(fitted.whole_cut, fitted.cut, self._source, self._n_threads)
        trim_heap()  # memory for a trial, so that plans of processes with and without one agree
        layouts = {graph: exchange.layout for graph, exchange in found.exchanges.items()}
        fitted.exchange(layouts)
        return found

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        deployment = self._deployed
        if not deployment.device.is_cpu and not deployment.max_bytes:
            deployment.leave_device(f"no memory of {deployment.device.label} was given to it")
        if plan is not None:
            deployment.fitted.sizes = deployment.batches[plan.batches.get(self._request.owner, 0)]
            if plan.paged and self._request.owner == "target":
                return self._load_paged(plan, progress)
        return self._load_resident(progress)

    def cancel(self) -> None:
        self._stop.is_set = True

    def _is_stopped(self) -> bool:
        return self._stop.is_set

    def close(self) -> None:
        if self._opened:
            self._opened.close()

    def notes(self, plan: MemoryPlan | None = None) -> Sequence[str]:
        name, fitted = self.info.name, self._deployed.fitted
        is_target = self._request.owner == "target"
        writes = plan is not None and is_target
        verifies = writes and plan is not None and plan.max_nodes > 1
        paging = paging_notes(name, fitted) if is_target else []
        rounding = rounding_notes(name, self._graph.graph, fitted, writes, verifies)
        measuring = measuring_notes(name, self._measured)
        if plan is not None and writes and plan.paged:
            paging += half_precision_notes(name, fitted)
        return [*self._source.notes, *self._deployed.notes, *measuring, *paging, *rounding]

    def _choose_accuracy(self) -> None:
        """Set the accuracy level that was asked for. Raises UsageError if nothing has one."""
        level = self._options.accuracy_level
        if level is None or self._request.owner != "target":
            return
        if not has_any(self._graph.graph, PACKED):
            raise UsageError(
                f"{setting.accuracy_level(level)}: {self._request.path.name} has no MatMulNBits, "
                "whose level it is: leave it out"
            )
        set_accuracy(self._graph.graph, level)

    @property
    def _n_threads(self) -> int:
        small = self.info.size_bytes < SMALL_MODEL_BYTES
        return 1 if small else self._request.n_threads

    def _describe(self, source: SourceModel) -> ModelInfo:
        request, config = self._request, source.config
        trained = context_length(source)
        n_ctx = request.ctx_size or min(trained or request.max_ctx, request.max_ctx)
        if trained and n_ctx > trained:
            if (switch := angle_switch(self._graph)) and switch[1] == trained:
                raise UsageError(
                    f"{setting.ctx_size(n_ctx)}: {request.path.name} has a second table of "
                    f"angles for texts of more than {trained:,} tokens, and a text that grows past "
                    f"that would have to be read anew: take at most {trained:,}"
                )
            request.check_context(n_ctx, trained)
        kind = config.get("model_type") or source.genai_config.get("type") or "decoder"
        return ModelInfo(
            name=request.path.resolve().stem if request.path.is_file() else request.path.name,
            architecture=str(kind),
            n_vocab=self._roles.n_vocab,
            n_ctx=n_ctx,
            n_layers=self._roles.n_layers,
            size_bytes=source.weight_bytes,
            max_nodes=request.max_nodes,
            max_branches=request.max_branches,
            n_slots=request.n_slots,
        )

    def _load_resident(self, progress: Progress | None) -> LanguageModel:
        """Load the whole graph in one session, whose weights onnxruntime reads and packs."""
        self.close()
        with self._phase("weights"), ExitStack() as on_failure:
            files = WatchedFiles(self._source.files)  # onnxruntime maps what it does not pack
            on_failure.callback(files.close)
            whole, tables = self._deployed.fitted.model, []
            if self._deployed.device.is_cpu:
                kinds = self._deployed.fitted.fed_kinds
                whole = pruned(with_rows_fed(with_blocks_by_row(whole), kinds))
                for name, table in self._deployed.fitted.cut.embeddings:
                    if name in kinds:
                        rows_of = EmbeddingTable(self._source, self._source.weights[table])
                        on_failure.callback(rows_of.close)
                        tables.append((name, rows_of))
            model, folder = with_weights(whole, self._source)
            report = progress or (lambda *_: None)
            report("reading weights", 0.0)
            session = OrtSession(
                model.SerializeToString(),
                str(self._source.path),
                self._n_threads,
                self._deployed.device.providers(self._deployed.max_bytes),
                folder,
                self._stop,
            )
            on_failure.callback(session.close)
            report("reading weights", 1.0)
            self._deployed.check(session)
            for file in self._source.files:
                copy_mapped(file)
            inputs = tuple((name, name) for name in session.inputs)
            outputs = tuple((name, name) for name in session.outputs)
            one_piece = Cut((), (Piece("model", 0, 0, inputs, (), outputs),), ())
            on_failure.pop_all()
        return self._open(one_piece, session, None, tables, files)

    def _load_paged(self, plan: MemoryPlan, progress: Progress | None) -> LanguageModel:
        with self._phase("pinned weights"), ExitStack() as on_failure:
            fitted = self._deployed.fitted
            tables = []
            for name, table in open_tables(fitted.cut, self._source, self._is_stopped, progress):
                on_failure.callback(table.close)
                tables.append((name, table))
            if not self._deployed.sessions:
                self._deployed.make_sessions()
            # the weights now own the sessions
            sessions, self._deployed.sessions = self._deployed.sessions, []
            weights = self._weights_class(progress)(
                self._source,
                fitted.cut,
                sessions,
                fitted.groups,
                plan,
                self._is_stopped,
                self._request.trace,
                self._request.read_limit,
            )
            on_failure.callback(weights.close)
            weights.fill(progress)
            on_failure.pop_all()
        return self._open(fitted.cut, None, weights, tables)

    def _weights_class(self, progress: Progress | None) -> Callable[..., OnnxWeights]:
        deployment, layouts = self._deployed, self._deployed.fitted.layouts
        if not layouts:
            return PackedWeights if deployment.fitted.has(PACKED) else OnnxWeights
        cut, n_threads = deployment.fitted.cut, self._n_threads
        file = records(
            cut, self._source, layouts, n_threads, made_by(cut), self._is_stopped, progress
        )
        return partial(ExchangingWeights, records=file, layouts=layouts, n_threads=n_threads)

    def _open(
        self,
        pieces: Cut,
        session: OrtSession | None,
        weights: OnnxWeights | None,
        tables: Sequence[tuple[str, EmbeddingTable]],
        files: WatchedFiles | None = None,
    ) -> LanguageModel:
        """A model that owns all of these."""
        fitted, n_slots = self._deployed.fitted, self.info.n_slots
        sizes = fitted.sizes
        kind_of_cache = (bool(fitted.buffer_tokens), self._has_sparse_cache)
        decoder = Decoder(
            pieces,
            self._roles,
            [KeyValueCache(self._roles, self._capacity, *kind_of_cache) for _ in range(n_slots)],
            self._stop,
            session,
            weights,
            tables,
        )
        return OnnxModel(
            decoder,
            Batcher(fitted.masks, sizes.chunk, fitted.takes_single_tokens),
            replace(self.info, max_nodes=sizes.max_nodes, n_threads=self._n_threads),
            self._vocabulary,
            sizes.tokens_per_pass,
            self._request.trace if self._request.owner == "target" else OFF,
            self._state_origin(),
            files,
        )

    def _state_origin(self) -> StateOrigin:
        settings = {
            "onnxruntime": ort.__version__,
            "--ctx-size": str(self.info.n_ctx),
            "--provider": self._deployed.device.label,
        }
        if self._options.accuracy_level is not None:
            settings["--accuracy-level"] = str(self._options.accuracy_level)
        if self._deployed.fitted.buffer_tokens:
            settings["order of the KV cache"] = "by heads"
        return StateOrigin(self._source.files, settings)
