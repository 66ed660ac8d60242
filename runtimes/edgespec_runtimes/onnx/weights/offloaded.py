"""Weights of a cut decoder on a device with own memory: some stay there, others are copied to it.

Copies come from the process's memory, where weights are pinned or streamed through the pager's
ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from edgespec.paging.pager import PinnedSegments
from edgespec.ports import Progress
from edgespec.tracing.spans import Track
from edgespec_runtimes.kit.segmented import one_by_one
from edgespec_runtimes.onnx.files.source_model import StoredWeight
from edgespec_runtimes.onnx.ort.devices import Device
from edgespec_runtimes.onnx.ort.sessions import (
    Bound,
    OrtSession,
    copy_to,
    room_on,
    translated_memory,
)
from edgespec_runtimes.onnx.weights.paged import OnnxWeights, PieceWeights, located, small_weights


class OffloadedWeights(OnnxWeights):
    """Weights for pieces that a device computes; `groups` are those that do not stay there."""

    def __init__(
        self, *arguments: Any, device: Device, kept: Sequence[PieceWeights], **options: Any
    ) -> None:
        """`kept` are the weights that stay on the device."""
        super().__init__(*arguments, **options)
        self._device = device
        self._kept = tuple(kept)
        self._on_device: dict[str, Any] = {}
        """OrtValues of the weights on the device, by name."""
        self._room: dict[int, dict[str, Any]] = {}
        """OrtValues into which weights are copied, by graph and by name in the graph."""

    def fill(self, progress: Progress | None) -> None:
        with translated_memory(self._device):
            self._keep(progress)
            for group in self.groups:
                piece = self._cut.pieces[group.piece]
                room = self._room.setdefault(piece.graph, {})
                own = {weight.name: weight for weight in group.weights}
                for short, name in piece.weights:
                    if name in own and short not in room:
                        room[short] = self._reserve(own[name])
        super().fill(progress)
        with translated_memory(self._device):
            for weight in small_weights(self._cut, self._source):
                self._put(weight, self._resident[weight.name])

    @contextmanager
    def held(self, index: int) -> Iterator[tuple[OrtSession, Mapping[str, Any]]]:
        piece = self._cut.pieces[index]
        values = {short: self._on_device.get(name) for short, name in piece.weights}
        if missing := {short for short, value in values.items() if value is None}:
            room = self._room[piece.graph]
            with self._in_memory(index) as weights, self._trace.span(Track.TARGET, "copy"):
                # copies are synchronous, so the slot is free for the next read while this piece
                # computes; runs are synchronous, too, so the room can be overwritten afterwards
                # (onnxruntime's `disable_synchronize_execution_providers` is never set)
                for short, name in piece.weights:
                    if short in missing:
                        copy_to(room[short], weights[name])
            values |= {short: room[short] for short in missing}
        with self._trace.span(Track.TARGET, "compute"):
            yield self._sessions[piece.graph], values

    def close(self) -> None:
        self._on_device.clear()
        self._room.clear()
        super().close()

    def _keep(self, progress: Progress | None) -> None:
        """Read the weights that stay on the device, one piece at a time, and copy them there."""
        doing = f"copying weights to {self._device.label}"
        for group in one_by_one(self._kept, self._is_stopped, doing, progress):
            with closing(PinnedSegments(self._trace)) as memory:
                base = memory.load(group.segment, self._reader, self._is_stopped)
                places = located(group.segment, group.weights, base)
                for weight in group.weights:
                    self._put(weight, places[weight.name])

    def _put(self, weight: StoredWeight, place: Bound) -> None:
        value = self._reserve(weight)
        copy_to(value, place)
        self._on_device[weight.name] = value

    def _reserve(self, weight: StoredWeight) -> Any:
        return room_on(self._device, weight.kind, weight.shape)
