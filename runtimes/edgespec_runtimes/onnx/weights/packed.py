"""Pages weights of operators that are fast only with weights packed by onnxruntime.

onnxruntime packs constants when it creates a session, so each piece has its own session: for pinned
pieces it is created once, for streamed ones in every pass from the bytes in their slot.
`exchanging.py` does without that where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import onnx

from edgespec.concurrency.owning import close_all
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.heap import trim_heap
from edgespec.paging.reader import WatchedFiles
from edgespec.ports import Progress
from edgespec_runtimes.onnx.files.source_model import SourceModel, refer
from edgespec_runtimes.onnx.graph.cutting import Cut, Piece
from edgespec_runtimes.onnx.graph.flow import PACKED, has_any
from edgespec_runtimes.onnx.ort.file_mappings import copy_mapped
from edgespec_runtimes.onnx.ort.sessions import Bound, OrtSession, value
from edgespec_runtimes.onnx.weights.paged import OnnxWeights, PieceWeights


def is_packed(graph: bytes) -> bool:
    """True if a graph has operators whose weights must be constants."""
    return has_any(onnx.load_from_string(graph).graph, PACKED)


def with_constants(graph: bytes, places: Mapping[str, Mapping[str, str]]) -> bytes:
    """The graph with some inputs replaced by constants with external data at `places`."""
    model = onnx.load_from_string(graph)
    for graph_input in [one for one in model.graph.input if one.name in places]:
        kind = graph_input.type.tensor_type.elem_type
        dims = [dim.dim_value for dim in graph_input.type.tensor_type.shape.dim]
        tensor = model.graph.initializer.add(name=graph_input.name, data_type=kind, dims=dims)
        refer(tensor, places[graph_input.name])
        model.graph.input.remove(graph_input)
    changed: bytes = model.SerializeToString()
    return changed


def with_stored(cut: Cut, piece: Piece, source: SourceModel) -> tuple[bytes, Path]:
    """The graph of a piece with its weights as external data below one folder, and this folder."""
    folder, places = source.references()
    stored = {short: places[name] for short, name in piece.weights}
    return with_constants(cut.graphs[piece.graph], stored), folder


class PackedWeights(OnnxWeights):
    """Weights that are constants instead of inputs for operators that pack them."""

    def __init__(self, *arguments: Any) -> None:
        """Takes the arguments of `OnnxWeights`."""
        super().__init__(*arguments)
        self._files = WatchedFiles(self._source.files)
        self._pinned_sessions: dict[int, OrtSession] = {}

    def fill(self, progress: Progress | None) -> None:
        location = {"location": "given with the session"}
        self._constant = {
            piece.graph: with_constants(
                self._cut.graphs[piece.graph], {short: location for short, _ in piece.weights}
            )
            for piece in self._cut.pieces
            if is_packed(self._cut.graphs[piece.graph])
        }
        super().fill(progress)

    @contextmanager
    def held(self, index: int) -> Iterator[tuple[OrtSession, Mapping[str, Bound]]]:
        piece = self._cut.pieces[index]
        if piece.graph not in self._constant:
            with super().held(index) as usual:
                yield usual
            return
        if index in self._pinned_sessions:
            yield self._pinned_sessions[index], {}
            return
        with self._in_memory(index) as bound:
            constants = {short: value(bound[name].array()) for short, name in piece.weights}
            with closing(
                self._sessions[piece.graph].like(self._constant[piece.graph], constants=constants)
            ) as session:
                yield session, {}

    def close(self) -> None:
        self.cancel()
        sessions = (session.close for session in self._pinned_sessions.values())
        close_all(*sessions, self._files.close, super().close)

    def _approach(self, wanted: MemoryPlan, is_stopped: Callable[[], bool]) -> None:
        try:
            super()._approach(wanted, is_stopped)
        finally:
            trim_heap()

    def _is_pinned(self, group: PieceWeights) -> bool:
        return group.piece in self._pinned_sessions or super()._is_pinned(group)

    def _let_go(self, group: PieceWeights) -> None:
        session = self._pinned_sessions.pop(group.piece, None)
        if session is None:
            super()._let_go(group)
        else:
            session.close()

    def _pin(self, group: PieceWeights, stopped: Callable[[], bool]) -> None:
        """Let onnxruntime map and pack a pinned segment; it unmaps what it has packed."""
        if self._cut.pieces[group.piece].graph not in self._constant:
            super()._pin(group, stopped)
            return
        self._pinned_sessions[group.piece] = self._session_of(group.piece)

    def _session_of(self, index: int) -> OrtSession:
        """A session of a piece, whose weights are its constants."""
        piece = self._cut.pieces[index]
        graph, folder = with_stored(self._cut, piece, self._source)
        session = self._sessions[piece.graph].like(graph, folder)
        for file in self._source.files:
            copy_mapped(file)
        for _, name in piece.weights:  # files that onnxruntime has opened by their names
            self._files[self._source.weights[name].extent.file_index].check(by_name=True)
        return session
