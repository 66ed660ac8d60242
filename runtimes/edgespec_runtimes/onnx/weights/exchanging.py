"""Pages packed layers through a session per kind of layer, whose constants are exchanged.

onnxruntime packs each layer once, into a copy in the cache folder. In a pass, a layer's record is
read from there and copied over the constants of the session, in a thirtieth of the time that
creating one takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import onnx

from edgespec.concurrency.owning import close_all
from edgespec.errors import Cancelled
from edgespec.files.unfinished import scratch_folder
from edgespec.paging.reader import Extent, Segment, block_ceil
from edgespec.ports import Progress
from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.graph.accuracy import levels
from edgespec_runtimes.onnx.graph.cutting import Cut
from edgespec_runtimes.onnx.ort.sessions import Bound, OrtSession
from edgespec_runtimes.onnx.weights import artifacts
from edgespec_runtimes.onnx.weights.exchange import ExchangedSession, Layout, SavedPiece, save
from edgespec_runtimes.onnx.weights.packed import PackedWeights, is_packed, with_stored
from edgespec_runtimes.onnx.weights.paged import PieceWeights

Layouts = Mapping[int, Layout]
"""Layouts of records by graph of the cut."""


def single_pieces(cut: Cut, layouts: Layouts) -> list[int]:
    """Packed pieces that exchange nothing, and stay in memory."""
    return [
        i
        for i, piece in enumerate(cut.pieces)
        if piece.graph not in layouts and is_packed(cut.graphs[piece.graph])
    ]


def with_records(
    groups: Sequence[PieceWeights], cut: Cut, source: SourceModel, layouts: Layouts
) -> list[PieceWeights]:
    """The segments if packed pieces have records, in the file after those of the source.

    Pieces that stay in memory have none.
    """
    places, _ = _places(cut, layouts)
    singles = set(single_pieces(cut, layouts))
    found = []
    for group in groups:
        if group.piece in places:
            record_bytes = layouts[cut.pieces[group.piece].graph].record_bytes
            extent = Extent(len(source.files), places[group.piece], record_bytes)
            found.append(PieceWeights(group.piece, Segment(group.segment.name, [extent]), ()))
        elif group.piece not in singles:
            found.append(group)
    return found


def _places(cut: Cut, layouts: Layouts) -> tuple[dict[int, int], int]:
    """Offsets of records in their file, by piece, and the size of the file."""
    places, end = {}, 0
    for i, piece in enumerate(cut.pieces):
        if piece.graph in layouts:
            places[i] = end
            end += block_ceil(layouts[piece.graph].record_bytes)
    return places, end


def records(
    cut: Cut,
    source: SourceModel,
    layouts: Layouts,
    n_threads: int,
    made_by: str,
    is_stopped: Callable[[], bool],
    progress: Progress | None,
) -> Path:
    """The file of records, made once for each accuracy level; `made_by` tells what packed them.

    Raises ModelError and Cancelled.
    """
    graphs = [onnx.load_from_string(graph).graph for graph in cut.graphs]
    level = "-".join(map(str, sorted({level for graph in graphs for level in levels(graph)})))
    places, end = _places(cut, layouts)

    def write(out: BinaryIO) -> None:
        for i, begin in places.items():
            if is_stopped():
                raise Cancelled("loading was cancelled")
            with scratch_folder(artifacts.folder()) as into:
                piece = _saved(cut, i, source, n_threads, into)
                out.seek(begin)
                out.write(piece.record(layouts[cut.pieces[i].graph]))
            if progress:
                progress("packing the layers once", (begin + 1) / end)
        out.truncate(end)

    why = "the layers must be copied as onnxruntime packs them"
    return artifacts.copied(source, f"{level}.packed", end, write, why, made_by)


def _saved(cut: Cut, index: int, source: SourceModel, n_threads: int, into: Path) -> SavedPiece:
    graph, folder = with_stored(cut, cut.pieces[index], source)
    return save(graph, folder, n_threads, into)


class ExchangingWeights(PackedWeights):
    """Weights of a decoder whose packed layers have records, and whose other packed pieces stay."""

    def __init__(
        self, source: SourceModel, *others: Any, records: Path, layouts: Layouts, n_threads: int
    ) -> None:
        """`others` are the arguments of `OnnxWeights`."""
        super().__init__(replace(source, files=(*source.files, records)), *others)
        self._layouts = layouts
        self._n_threads = n_threads
        self._exchanged: dict[int, ExchangedSession] = {}
        """Sessions by graph."""

    def fill(self, progress: Progress | None) -> None:
        graphs = [piece.graph for piece in self._cut.pieces]
        for graph, layout in self._layouts.items():
            with scratch_folder(artifacts.folder()) as into:
                saved = _saved(self._cut, graphs.index(graph), self._source, self._n_threads, into)
                self._exchanged[graph] = ExchangedSession(saved, layout, self._n_threads)
        for i in single_pieces(self._cut, self._layouts):
            self._pinned_sessions[i] = self._session_of(i)
        super().fill(progress)

    @contextmanager
    def held(self, index: int) -> Iterator[tuple[OrtSession, Mapping[str, Bound]]]:
        exchanged = self._exchanged.get(self._cut.pieces[index].graph)
        if exchanged is None or index in self._pinned_sessions:
            with super().held(index) as usual:
                yield usual
            return
        assert self.pager is not None
        segment = self._segment_of[index]
        record = self.pager.acquire(segment)
        if record is None:
            raise Cancelled("the model was asked to stop")
        try:
            exchanged.take(record)
        finally:
            self.pager.release(segment)
        yield exchanged.session, {}

    def close(self) -> None:
        close_all(*(session.close for session in self._exchanged.values()), super().close)
