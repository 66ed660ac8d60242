"""Finds the weights of a mapped model in order of use, and cuts them into segments.

The weights are not read. Owns the mapped model until `take_model`. Knows no plan and no budget.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from edgespec.errors import ModelError, setting
from edgespec.paging.reader import Reader
from edgespec_runtimes.gguf.context.contexts import ContextShape
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.llama import abi, loading
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.weights import row_tables, segments
from edgespec_runtimes.gguf.weights.offloading import Offloading
from edgespec_runtimes.gguf.weights.paged_experts import Mixture, mixtures


class LowerBits(Protocol):
    """Lower bits of the weights, in a file of their own; a draft has the upper ones in memory."""

    path: Path
    memory_bytes: int
    """Memory in which they are read and merged."""

    def nest(self, group: segments.WeightGroup) -> segments.WeightGroup:
        """The group, of which only lower bits are read if they are known."""

    def checked(self, reader: Reader) -> Reader:
        """A reader of the model's files, and then of that file."""


class MappedWeights:
    """Weights of a model that is mapped on first use; no devices are used before `place`."""

    def __init__(
        self,
        header: GgufFile,
        offloading: Callable[[], Offloading],
        stop: AbortFlag,
        mapping: Callable[[], AbstractContextManager[None]],
        shape: ContextShape = segments.TRACED_SHAPE,
    ) -> None:
        """`mapping` returns a context manager for each mapping, which measures its time. `shape` is
        that of the context whose graph is traced."""
        self.is_lazy = True
        """True if the platform maps files without reading them."""
        self.header = header
        self._offloading = offloading
        self.stop = stop
        self._mapping = mapping
        self._shape = shape
        self._model: loading.Model | None = None
        self.nested: LowerBits | None = None
        """Weights of which only the lower bits are streamed; set before `cuts` are asked for."""

    @cached_property
    def traced(self) -> list[segments.TracedWeight]:
        """Weights in the process's memory, in order of use."""
        with self._mapping():
            return self._offloading().staying(self._trace())

    @cached_property
    def mixtures(self) -> list[Mixture]:
        return mixtures(self.traced)

    @cached_property
    def cuts(self) -> list[list[segments.WeightGroup]]:
        """Possible segmentations of the streamable weights, coarsest first."""
        experts = {weight.address for mixture in self.mixtures for weight in mixture.weights}
        streamable = [w for w in self.traced if w.swappable and w.address not in experts]
        layers = segments.cut(streamable)
        if not layers:  # all are on a GPU
            return []
        largest = max(group.segment.nbytes for group in layers)
        cuts = [layers]
        for parts in (2, 4, 1 << 30):
            finer = segments.cut(streamable, largest // parts)
            if len(finer) > len(cuts[-1]):
                cuts.append(finer)
        for nbytes in (segments.MIN_SLICE_BYTES, segments.MIN_SLICE_BYTES // 2):
            divided = segments.cut(streamable, nbytes, divides_layers=True)
            if segments.largest_slot(divided) < segments.largest_slot(cuts[-1]):
                cuts.append(divided)
        if self.nested:
            cuts = [[self.nested.nest(group) for group in cut] for cut in cuts]
        return cuts

    @property
    def unpaged_bytes(self) -> int:
        """Bytes of the weights that are neither streamable nor looked up by row."""
        unpaged = (w for w in self.traced if not w.swappable and not w.looked_up)
        return sum(weight.entry.nbytes for weight in unpaged)

    def looked_up_bytes(self, n_rows: int) -> int:
        """Most memory of the rows that passes over up to `n_rows` look up."""
        tables = (w for w in self.traced if w.looked_up)
        return sum(row_tables.bytes_for(w.entry, n_rows * w.rows_per_token) for w in tables)

    def place(self, placement: loading.LayerPlacement, is_paged: bool = True) -> None:
        """Map the model again with layers on devices.

        If the rest `is_paged`, its weights are traced again; raises ModelError if llama.cpp did not
        place the tensors as planned.
        """
        planned = self.traced
        self.close()
        for name in ("traced", "mixtures", "cuts"):
            self.__dict__.pop(name, None)
        with self._mapping():
            self._model, self.is_lazy = loading.load_mapped(self.header.path, placement)
        if not is_paged:
            return
        places = {
            name: address
            for name, address in self._model.tensors()
            if abi.is_in_host_memory(address)
        }
        staying = {weight.entry.name for weight in planned}
        here = places.keys() & (staying | self._offloading().names)
        if misplaced := staying ^ here:
            raise ModelError(
                f"llama.cpp placed {len(misplaced)} tensors of {self.header.path.name} on the "
                f"device or beside it otherwise than planned ({min(misplaced)} is one): choose "
                f"another {setting.n_gpu_layers}"
            )
        self.traced = [replace(w, address=places[w.entry.name]) for w in planned]

    def take_model(self) -> loading.Model:
        """Transfer ownership of the mapped model to the caller."""
        model, self._model = self._model, None
        assert model is not None
        return model

    def give_texts(self) -> loading.Model | None:
        """Transfer the mapped model for its vocabulary, where mapping takes no memory; otherwise,
        and if there is none, close it."""
        if self._model is not None and self.is_lazy:
            return self.take_model()
        self.close()
        return None

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None

    def _trace(self) -> list[segments.TracedWeight]:
        self._model, self.is_lazy = loading.load_mapped(self.header.path)
        return segments.trace_weights(self._model, self.header, self.stop, self._shape)
