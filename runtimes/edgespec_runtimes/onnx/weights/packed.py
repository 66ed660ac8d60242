"""Pages weights of operators that are fast only with weights packed by onnxruntime.

onnxruntime packs constants when it creates a session, so each piece has its own session: for pinned
pieces it is created once, for streamed ones in every pass from the bytes in their slot. While one
piece computes, a thread packs the next one. `exchanging.py` does without that where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx

from edgespec.concurrency.owning import close_all
from edgespec.concurrency.worker import Worker
from edgespec.errors import Cancelled, EdgespecError
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.heap import trim_heap
from edgespec.paging.reader import WatchedFiles
from edgespec.ports import Progress
from edgespec_runtimes.onnx.files.source_model import refer
from edgespec_runtimes.onnx.graph.flow import PACKED
from edgespec_runtimes.onnx.ort.file_mappings import copy_mapped
from edgespec_runtimes.onnx.ort.sessions import Bound, OrtSession, value
from edgespec_runtimes.onnx.weights.paged import OnnxWeights, PieceWeights, located


def is_packed(graph: bytes) -> bool:
    """True if a graph has operators whose weights must be constants."""
    nodes = onnx.load_from_string(graph).graph.node
    return any(node.op_type in PACKED for node in nodes)


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


@dataclass(frozen=True)
class _Ready:
    """The session of a streamed segment, whose slot is held until the session is closed."""

    segment: int
    session: OrtSession
    constants: Mapping[str, Any]
    """OrtValues on the slot's memory, from which unpacked weights are read."""


class PackedWeights(OnnxWeights):
    """Weights that are constants instead of inputs for operators that pack them."""

    _worker: Worker | None = None
    _next: Future[_Ready] | None = None
    _next_segment = -1

    def __init__(self, *arguments: Any) -> None:
        """Takes the arguments of `OnnxWeights`."""
        super().__init__(*arguments)
        self._files = WatchedFiles(self._source.files)
        self._pinned_sessions: dict[int, OrtSession] = {}

    def fill(self, progress: Progress | None) -> None:
        self._worker = Worker()
        location = {"location": "given with the session"}
        self._constant = {
            piece.graph: with_constants(
                self._cut.graphs[piece.graph], {short: location for short, _ in piece.weights}
            )
            for piece in self._cut.pieces
            if is_packed(self._cut.graphs[piece.graph])
        }
        self._pin_singles()
        super().fill(progress)

    def _pin_singles(self) -> None:
        """Create sessions of pieces that are no segments, and stay."""

    @contextmanager
    def held(self, index: int) -> Iterator[tuple[OrtSession, Mapping[str, Bound]]]:
        piece = self._cut.pieces[index]
        if piece.graph not in self._constant:
            if index in self._segment_of:
                self._forget_next()  # left by an aborted pass; its slot would stay held
            with super().held(index) as usual:
                yield usual
            return
        if index in self._pinned_sessions:
            yield self._pinned_sessions[index], {}
            return
        segment = self._segment_of[index]
        ready = self._take(segment)
        try:
            self._prepare_ahead((segment + 1) % len(self._streamed))
            yield ready.session, {}
        finally:
            self._drop(ready)

    def close(self) -> None:
        self.cancel()
        self._forget_next()
        worker = (self._worker.close,) if self._worker else ()
        sessions = (session.close for session in self._pinned_sessions.values())
        close_all(*worker, *sessions, self._files.close, super().close)

    def _approach(self, wanted: MemoryPlan, is_stopped: Callable[[], bool]) -> MemoryPlan:
        self._forget_next()
        try:
            return super()._approach(wanted, is_stopped)
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
        piece, (folder, places) = self._cut.pieces[index], self._source.references()
        graph = with_constants(
            self._cut.graphs[piece.graph], {short: places[name] for short, name in piece.weights}
        )
        session = self._sessions[piece.graph].like(graph, folder)
        for file in self._source.files:
            copy_mapped(file)
        self._files.check()
        return session

    def _take(self, segment: int) -> _Ready:
        assert self.pager is not None
        if self._next is not None and self._next_segment == segment:
            future, self._next = self._next, None
            begin = self.pager.now()
            # two slots of different sizes may not fit at once, but this one alone does
            with suppress(EdgespecError):
                ready = future.result()
                self.pager.count_wait(segment, begin)
                return ready
        self._forget_next()
        return self._prepare(segment)

    def _prepare_ahead(self, segment: int) -> None:
        if self._worker and self._cut.pieces[self._streamed[segment].piece].graph in self._constant:
            self._next = self._worker.submit(partial(self._prepare, segment, is_stall=False))
            self._next_segment = segment

    def _prepare(self, segment: int, is_stall: bool = True) -> _Ready:
        """Wait for a segment and pack it. Raises WeightReadError and Cancelled."""
        assert self.pager is not None
        base = self.pager.acquire(segment, is_stall)
        if base is None:
            raise Cancelled("the model was asked to stop")
        group = self._streamed[segment]
        try:
            piece = self._cut.pieces[group.piece]
            bound = self._resident | located(group.segment, group.weights, base)
            constants = {short: value(bound[name].array()) for short, name in piece.weights}
            graph = self._constant[piece.graph]
            session = self._sessions[piece.graph].like(graph, constants=constants)
            return _Ready(segment, session, constants)
        except BaseException:
            self.pager.release(segment)
            raise

    def _drop(self, ready: _Ready) -> None:
        assert self.pager is not None
        ready.session.close()
        self.pager.release(ready.segment)

    def _forget_next(self) -> None:
        """Drop the session that was prepared for a piece that was not used."""
        if self._next is None:
            return
        future, self._next = self._next, None
        with suppress(EdgespecError):  # raised again when the segment is needed
            self._drop(future.result())
