"""Provides the weights of a cut decoder: small ones resident, layers paged, embeddings by row.

Gives each piece the addresses of its weights. Knows pieces and segments; `decoder.py` runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from onnx import helper

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.errors import Cancelled, ModelError, WeightReadError
from edgespec.memory.budget import MemoryPlan
from edgespec.paging.reader import DirectReader, ReadLimit, Segment
from edgespec.ports import Progress
from edgespec.tracing.spans import OFF, Trace, Track
from edgespec_runtimes.kit.row_file import RowFile
from edgespec_runtimes.kit.segmented import Division, SegmentedWeights
from edgespec_runtimes.onnx.files.source_model import SourceModel, StoredWeight
from edgespec_runtimes.onnx.graph.cutting import Cut
from edgespec_runtimes.onnx.ort.sessions import Bound, OrtSession
from edgespec_runtimes.onnx.weights.artifacts import SMALL_BYTES, by_row

SHARED_BYTES = 4 << 20
"""Weights up to this size that several pieces read stay in memory, instead of being streamed for
each of them."""


@dataclass(frozen=True)
class PieceWeights:
    """The weights that only one piece uses, which form a segment."""

    piece: int
    segment: Segment
    weights: tuple[StoredWeight, ...]


def own_weights(cut: Cut, source: SourceModel) -> list[PieceWeights]:
    """The segments in order of use, one for each piece with weights of its own."""
    small = {weight.name for weight in small_weights(cut, source)}
    groups = []
    for i, piece in enumerate(cut.pieces):
        names = dict.fromkeys(name for _, name in piece.weights if name not in small)
        weights = tuple(source.weights[name] for name in names)
        if weights:
            segment = Segment(piece.name, [weight.extent for weight in weights])
            groups.append(PieceWeights(i, segment, weights))
    return groups


def small_weights(cut: Cut, source: SourceModel) -> list[StoredWeight]:
    """Weights that stay in memory, because several pieces read them or they are small."""
    users = Counter(name for piece in cut.pieces for name in {name for _, name in piece.weights})
    found = []
    for name, n in users.items():
        weight = source.weights[name]
        most = SHARED_BYTES if n > 1 else 0 if weight.is_aligned else SMALL_BYTES
        if weight.nbytes <= most:
            found.append(weight)
    return found


class EmbeddingTable(Closeable):
    """An embedding table whose rows are read on demand."""

    def __init__(self, source: SourceModel, weight: StoredWeight) -> None:
        path, row_bytes = source.files[weight.extent.file_index], weight.nbytes // weight.shape[0]
        self._name, (self._n_rows, *self._shape) = weight.name, weight.shape
        self._kind = helper.tensor_dtype_to_np_dtype(weight.kind)
        self._file = RowFile(path, weight.name, weight.extent, row_bytes)

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """Embeddings [rows, tokens, hidden] of ids [rows, tokens]. Raises WeightReadError, and
        ModelError for a token without a row."""
        rows = np.empty((tokens.size, *self._shape), self._kind)
        first: dict[int, int] = {}
        for i, token in enumerate(tokens.ravel().tolist()):
            if (known := first.setdefault(token, i)) < i:
                rows[i] = rows[known]
            elif token >= self._n_rows:
                raise ModelError(
                    f"{self._name} has {self._n_rows} rows and none for token {token}: export the "
                    "model again"
                )
            else:
                self._file.read(token, memoryview(rows[i]).cast("B"))
        return rows.reshape(*tokens.shape, *self._shape)

    def close(self) -> None:
        self._file.close()


def open_tables(
    cut: Cut, source: SourceModel, is_stopped: Callable[[], bool], progress: Progress | None
) -> Iterator[tuple[str, EmbeddingTable]]:
    """Tables of the embeddings that are looked up by token; transposed ones are copied first.

    Raises ModelError and Cancelled.
    """
    for value, table in cut.embeddings:
        yield value, EmbeddingTable(source, source.weights[table])
    for value, table in cut.columns:
        rows = by_row(source, table, is_stopped, progress)
        yield value, EmbeddingTable(rows, rows.weights[table])


class OnnxWeights(SegmentedWeights[PieceWeights]):
    """All weights of a cut decoder; `fill` reads the resident ones and starts streaming."""

    def __init__(
        self,
        source: SourceModel,
        cut: Cut,
        sessions: Sequence[OrtSession],
        groups: Sequence[PieceWeights],
        plan: MemoryPlan,
        is_stopped: Callable[[], bool],
        trace: Trace = OFF,
        read_limit: int | None = None,
    ) -> None:
        reader = DirectReader(source.files, ReadLimit(read_limit))
        super().__init__(plan, reader, is_stopped, trace)
        self.groups = tuple(groups)
        self._source = source
        self._cut = cut
        self._sessions = tuple(sessions)
        self._small: list[np.ndarray] = []
        self._resident: dict[str, Bound] = {}
        """Weights at permanent addresses, by name."""
        self._use(Division(groups, plan.pinned))

    def fill(self, progress: Progress | None) -> None:
        """Read the resident weights and start streaming. Raises WeightReadError and Cancelled."""
        for weight in small_weights(self._cut, self._source):
            array = _read(self._source, weight)
            self._small.append(array)
            kind = helper.tensor_dtype_to_np_dtype(weight.kind).type
            self._resident[weight.name] = Bound(kind, weight.shape, array.ctypes.data)
        self._fill(self._arranged.pinned_groups, progress)

    @contextmanager
    def held(self, index: int) -> Iterator[tuple[OrtSession, Mapping[str, Bound]]]:
        """Yield the session of a piece, and its weights by their names in its graph.

        Raises WeightReadError, and Cancelled if it was cancelled while waiting for storage.
        """
        piece = self._cut.pieces[index]
        segment = self._segment_of.get(index)
        with self._in_memory(index) as bound, self._trace.span(Track.TARGET, "compute") as span:
            if segment is not None:
                span.note(segment=segment)
            weights = {short: bound[name] for short, name in piece.weights}
            yield self._sessions[piece.graph], weights

    @contextmanager
    def _in_memory(self, index: int) -> Iterator[Mapping[str, Bound]]:
        """Yield a piece's weights in memory by name, valid in the block."""
        segment = self._segment_of.get(index)
        if segment is None:
            yield self._resident
            return
        assert self.pager is not None
        base = self.pager.acquire(segment)
        if base is None:
            raise Cancelled("the model was asked to stop")
        try:
            group = self._streamed[segment]
            yield self._resident | located(group.segment, group.weights, base)
        finally:
            self.pager.release(segment)

    def _groups_of(self, wanted: MemoryPlan) -> Sequence[PieceWeights]:
        return self.groups

    def _find_places(self) -> None:
        self._streamed = self._arranged.streamed
        self._segment_of = {group.piece: i for i, group in enumerate(self._streamed)}

    def _pin(self, group: PieceWeights, stopped: Callable[[], bool]) -> None:
        base = self._pinned.load(group.segment, self._reader, stopped)
        self._resident |= located(group.segment, group.weights, base)

    def _let_go(self, group: PieceWeights) -> None:
        for weight in group.weights:
            del self._resident[weight.name]
        self._pinned.drop(group.segment)

    def close(self) -> None:
        close_all(*(session.close for session in self._sessions), super().close)


def _read(source: SourceModel, weight: StoredWeight) -> np.ndarray:
    """Read a weight into memory of its own. Raises WeightReadError."""
    path = source.files[weight.extent.file_index]
    try:
        array = np.fromfile(path, np.uint8, weight.nbytes, offset=weight.extent.offset)
    except OSError as error:
        raise WeightReadError(f"reading {path} failed: {error.strerror}") from error
    if array.nbytes != weight.nbytes:
        raise WeightReadError(f"{path} was cut short: {weight.name} ends early; copy it again")
    return array


def located(segment: Segment, weights: Sequence[StoredWeight], base: int) -> dict[str, Bound]:
    return {
        weight.name: Bound(
            helper.tensor_dtype_to_np_dtype(weight.kind).type,
            weight.shape,
            base + segment.locate(weight.extent.file_index, weight.extent.offset),
        )
        for weight in weights
    }
