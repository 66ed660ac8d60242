"""Opens ONNX decoders: validates the graph, plans what it needs, loads as the plan says.

Nothing is read that is not kept: the graph is read without its weights, and sessions that weights
are bound to are made without them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx

from edgespec.budget import MIB, MemoryPlan, MemoryRow, SegmentSize
from edgespec.errors import ModelError, UsageError
from edgespec.memory import return_free_memory
from edgespec.ports import LanguageModel, Progress
from edgespec.runtimes import ModelRequest, without_padding
from edgespec.tracing import OFF, Track
from edgespec.values import ModelDetails, ModelInfo
from edgespec_runtimes.onnx import needs, store
from edgespec_runtimes.onnx.batches import Batcher
from edgespec_runtimes.onnx.cache import KeyValueCache
from edgespec_runtimes.onnx.cutting import Cut, Piece, cut
from edgespec_runtimes.onnx.decoder import Decoder
from edgespec_runtimes.onnx.details import context_length, details_of
from edgespec_runtimes.onnx.graph import BATCH_SCALED, PACKED, simplified
from edgespec_runtimes.onnx.masks import find_masks
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.packing import PackedWeights
from edgespec_runtimes.onnx.providers import choose
from edgespec_runtimes.onnx.rewriting import rewritten
from edgespec_runtimes.onnx.roles import find_roles
from edgespec_runtimes.onnx.sessions import Session, Stop
from edgespec_runtimes.onnx.source import Source, find_model, read_source, refer
from edgespec_runtimes.onnx.vocabulary import read_vocabulary
from edgespec_runtimes.onnx.weights import (
    EmbeddingTable,
    PagedWeights,
    own_weights,
    small_weights,
)

CUT_VERSION = b"1 "
"""Changes when the same graph would be cut in another way."""
SMALL_MODEL_BYTES = 64 * MIB
"""Below this a second thread costs more in waking than it computes."""
TREES_OF_ROOM = 4
"""Trees that the cache has room for beside the context: nodes stay while others are evaluated."""


class OnnxRuntime:
    """The entry point `onnx`."""

    name = "onnx"

    def recognises(self, path: Path) -> bool:
        return find_model(path) is not None

    def describe(self, path: Path) -> ModelDetails:
        source = read_source(_named(path))
        model = simplified(source.model, str(source.path))
        return details_of(source, find_roles(model.graph, str(source.path)))

    def prepare(self, request: ModelRequest) -> PreparedOnnx:
        _refuse_what_cannot_apply(request)
        prepared = PreparedOnnx(request)
        try:
            prepared.read(_named(request.path))
        except BaseException:
            prepared.close()
            raise
        return prepared


def _named(path: Path) -> Path:
    found = find_model(path)
    if found is None:
        raise ModelError(f"{path} is no ONNX model: name a file .onnx or its folder")
    return found


def _refuse_what_cannot_apply(request: ModelRequest) -> None:
    """Raises UsageError for options that only llama.cpp knows."""
    what = f"{request.path.name} is an ONNX model"
    if request.n_gpu_layers:
        raise UsageError(f"{what}: -ngl and -ngld are for GGUF models; leave them out")
    if request.owner == "draft":
        return  # what else was asked for may be for a target of another kind
    if request.flash_attn != "auto":
        raise UsageError(f"{what}: its graph says how attention is computed; leave -fa out")
    if {request.cache_type_k, request.cache_type_v} != {"f16"}:
        raise UsageError(f"{what}: its graph says of what type the KV cache is; leave -ctk out")


class PreparedOnnx:
    """Implements `edgespec.runtimes.PreparedModel`. `read` comes before everything else."""

    info: ModelInfo

    def __init__(self, request: ModelRequest) -> None:
        self.seconds: dict[str, float] = {}
        self._request = request
        self._stop = Stop()
        self._sessions = ExitStack()
        self._providers = choose(request.provider)

    def read(self, path: Path) -> None:
        """Read and validate the graph and the vocabulary, and plan the batches."""
        where, request = str(path), self._request
        with self._phase("graph and vocabulary"):
            source = read_source(path)
            model = simplified(source.model, where)
            self._roles = find_roles(model.graph, where)
            configs = (source.generation_config, source.config, source.genai_config)
            self._vocabulary = read_vocabulary(source.folder, self._roles.n_vocab, configs)
            self.info = self._describe(source)
            self._capacity = self.info.n_ctx + TREES_OF_ROOM * self.info.max_nodes
            self._masks = find_masks(model, self._roles, self._capacity, where)
            self._model = rewritten(model, self._roles, self._masks, where)
        with self._phase("cutting"):
            self._source = store.aligned(source, self._stop.is_set)
            shapes = {weight.name: weight.shape for weight in source.weights.values()}
            key = CUT_VERSION + onnx.__version__.encode() + self._model.SerializeToString()
            self._cut = store.cached_cut(key, lambda: cut(self._model, self._roles, shapes, where))
            self._sizes = needs.choose_sizes(
                self._model, self._roles, self._masks, self._cut, request, self.info.n_ctx
            )
            self._groups = own_weights(self._cut, self._source)
        with self._phase("sessions"):
            # made before the plan: an operator that onnxruntime does not know is refused now
            self._pieces = [
                self._sessions.enter_context(
                    Session(graph, where, self._n_threads, self._providers.providers)
                )
                for graph in self._cut.graphs
            ]

        return_free_memory()  # what reading the graph took, before the process is measured

    @property
    def enforced(self) -> bool:
        return sys.platform != "win32"

    def tokens(self) -> Sequence[bytes]:
        return without_padding(self._vocabulary.table)

    def fixed_rows(self) -> Sequence[MemoryRow]:
        owner, info = self._request.owner, self.info
        cache_bytes = self._capacity * self._roles.kv_token_bytes
        logits_bytes = 4 * info.max_nodes * info.n_vocab
        return (
            MemoryRow(owner, f"KV cache ({info.n_ctx} tokens)", cache_bytes),
            MemoryRow(owner, "compute buffers", self._sizes.compute_bytes),
            # onnxruntime's output, and the copy that the engine works on
            MemoryRow(owner, f"logits ({info.max_nodes} nodes)", 2 * logits_bytes),
        )

    def resident_rows(self) -> Sequence[MemoryRow] | None:
        resident = sum(needs.resident_bytes(weight) for weight in self._source.weights.values())
        return (
            MemoryRow(self._request.owner, "weights", resident),
            MemoryRow(self._request.owner, "loading", needs.loading_bytes(self._source)),
        )

    def paged_rows(self) -> Sequence[MemoryRow]:
        converted = needs.converted_bytes(self._cut, self._source)
        small = sum(weight.nbytes for weight in small_weights(self._cut, self._source))
        largest = max((group.segment.nbytes for group in self._groups), default=0)
        # one piece computes while the next is packed; the rest is what the allocator leaves
        packed = 4 * largest if self._has(PACKED) else 0
        return (
            MemoryRow("target", "packed weights of streamed layers", packed),
            MemoryRow("target", "norms and other small tensors", small),
            MemoryRow("target", "compute buffers of further sessions", self._sizes.more_bytes),
            MemoryRow("target", "weights in single precision", converted),
        )

    def segmentations(self) -> Sequence[Sequence[SegmentSize]]:
        if not self._providers.is_cpu:
            return []
        segments = [group.segment for group in self._groups]
        return [[SegmentSize(s.name, s.nbytes, s.slot_bytes) for s in segments]]

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        if plan is None or not plan.paged:
            return self._load_resident(progress)
        return self._load_paged(plan, progress)

    def cancel(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._sessions.close()

    @property
    def notes(self) -> Sequence[str]:
        used = [name for session in self._pieces for name in session.providers]
        about_provider = self._providers.note(self.info.name, used)
        notes = [about_provider] if about_provider else []
        if self._has(BATCH_SCALED):
            notes.append(
                f"{self.info.name} scales activations over a batch: to keep its text, each token "
                "is computed by itself, and a pass saves reading but no computing"
            )
        return notes

    def _has(self, operators: Sequence[str]) -> bool:
        return any(node.op_type in operators for node in self._model.graph.node)

    @property
    def _n_threads(self) -> int:
        small = self.info.size_bytes < SMALL_MODEL_BYTES
        return 1 if small else self._request.n_threads

    def _describe(self, source: Source) -> ModelInfo:
        request, config = self._request, source.config
        trained = context_length(source)
        n_ctx = request.ctx_size or min(trained or request.most_ctx, request.most_ctx)
        if trained and n_ctx > trained:
            raise UsageError(
                f"--ctx-size {n_ctx:,} is more than the {trained:,} tokens that "
                f"{request.path.name} was trained on"
            )
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
        )

    def _load_resident(self, progress: Progress | None) -> LanguageModel:
        """The graph whole, its weights read and packed by onnxruntime as it likes them best."""
        self.close()
        with self._phase("weights"), ExitStack() as on_failure:
            if progress:
                progress("reading weights", 0.0)
            model, folder = _with_weights(self._model, self._source)
            session = on_failure.enter_context(
                Session(
                    model.SerializeToString(),
                    str(self._source.path),
                    self._n_threads,
                    self._providers.providers,
                    folder,
                    self._stop,
                )
            )
            if progress:
                progress("reading weights", 1.0)
            inputs = tuple((name, name) for name in session.inputs)
            outputs = tuple((name, name) for name in session.outputs)
            whole = Cut((), (Piece("model", 0, 0, inputs, (), outputs),), ())
            on_failure.pop_all()
        return self._open(whole, session, None, ())

    def _load_paged(self, plan: MemoryPlan, progress: Progress | None) -> LanguageModel:
        trace = self._request.trace
        with self._phase("pinned weights"), ExitStack() as on_failure:
            # the weights own the sessions from here on
            self._sessions.pop_all()
            made = PackedWeights if self._has(PACKED) else PagedWeights
            weights = made(
                self._source,
                self._cut,
                self._pieces,
                self._groups,
                plan.pinned,
                plan.ring_bytes,
                self._stop.is_set,
                trace,
            )
            on_failure.callback(weights.close)
            weights.fill(progress)
            tables = []
            for name, table in self._cut.embeddings:
                tables.append((name, EmbeddingTable(self._source, self._source.weights[table])))
                on_failure.callback(tables[-1][1].close)
            on_failure.pop_all()
        return self._open(self._cut, None, weights, tables)

    def _open(
        self,
        pieces: Cut,
        session: Session | None,
        weights: PagedWeights | None,
        tables: Sequence[tuple[str, EmbeddingTable]],
    ) -> LanguageModel:
        """The model behind the port, which owns all of these."""
        sizes = self._sizes
        decoder = Decoder(
            pieces,
            self._roles,
            KeyValueCache(self._roles, self._capacity),
            self._stop,
            session,
            weights,
            tables,
        )
        return OnnxModel(
            decoder,
            Batcher(self._masks, sizes.chunk, sizes.max_rows, self._has(BATCH_SCALED)),
            self.info,
            self._vocabulary,
            sizes.tokens_per_pass,
            self._request.trace if self._request.owner == "target" else OFF,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """A part of loading; what it took is told if it succeeds."""
        with self._request.trace.span(Track.ENGINE, f"{self._request.owner}: {name}"):
            began = time.perf_counter()
            yield
            self.seconds[name] = time.perf_counter() - began


def _with_weights(model: onnx.ModelProto, source: Source) -> tuple[onnx.ModelProto, Path]:
    """The graph, referring to its weights below one folder, and this folder."""
    folder, places = source.references()
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in places:
            refer(tensor, places[tensor.name])
    return whole, folder
