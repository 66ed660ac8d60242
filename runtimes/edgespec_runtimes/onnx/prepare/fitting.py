"""Fits a decoder's graph to a device: rewrites and cuts it, and sizes its batches.

GPUs and the CPU need different graphs. Knows no budget and no origin of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import onnx

from edgespec.memory.needs import affordable
from edgespec.registry import ModelRequest
from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.files.source_model import SourceModel
from edgespec_runtimes.onnx.graph.cutting import ALWAYS, Cut, cut
from edgespec_runtimes.onnx.graph.flow import BATCH_SCALED, FUSED_ATTENTION, has_any
from edgespec_runtimes.onnx.graph.fusing import can_be_fused, export_shapes, with_fused_attention
from edgespec_runtimes.onnx.graph.rewriting import appends_in_place, compacted, rewritten
from edgespec_runtimes.onnx.graph.shapes import check_sizes, infer
from edgespec_runtimes.onnx.graph.variants import is_merged
from edgespec_runtimes.onnx.memory import decoder_needs
from edgespec_runtimes.onnx.ort.devices import Device
from edgespec_runtimes.onnx.prepare.folding import folded, sizes_to_compare
from edgespec_runtimes.onnx.prepare.masks import find_masks
from edgespec_runtimes.onnx.weights.exchanging import Layouts, with_records
from edgespec_runtimes.onnx.weights.paged import own_weights, small_weights


class FittedDecoder:
    """A decoder fitted to one device."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        roles: Roles,
        source: SourceModel,
        request: ModelRequest,
        n_ctx: int,
        capacity: int,
        device: Device,
    ) -> None:
        self.source = source
        self.where = where = str(source.path)
        # CUDA's fused attention does not support a bias, as which masks are given
        self.refuses_masks = not device.is_cpu and has_any(graph.graph, [FUSED_ATTENTION])
        self.masks = () if self.refuses_masks else find_masks(graph, roles, capacity, where)
        max_new = max(decoder_needs.CHUNKS[0], request.max_nodes)
        if device.is_cpu and can_be_fused(graph, roles, self.masks):
            fused = with_fused_attention(_shapes_folded(graph, roles), roles, self.masks)
            bias = find_masks(fused, roles, capacity, where) if fused else ()
            if fused and bias:
                graph, self.masks = fused, bias
        self.hides_nothing = is_merged(graph.graph) and not self.masks
        """True if tokens of a batch may see later ones."""
        in_place = bool(self.masks) and device.is_cpu and appends_in_place(graph, roles)
        self.buffer_tokens = capacity if in_place else 0
        """Tokens of the buffers to which attention appends by itself; 0 if it does not."""
        sizes = sizes_to_compare(roles, self.masks, max_new, capacity, self.buffer_tokens)
        decoder = rewritten(graph, roles, self.masks, where, self.buffer_tokens)
        self.model = compacted(folded(decoder, sizes))
        check_sizes(infer(self.model), roles.n_vocab, source.weight_bytes, where)
        shapes = {weight.name: weight.shape for weight in source.weights.values()}
        self._cut = partial(cut, self.model, roles, shapes, where)
        self.cut = self._cut(by_piece=device.is_cpu)
        self.batches = decoder_needs.batch_sizes(
            self.model, roles, self.masks, self.cut, request, n_ctx, self.buffer_tokens
        )
        most = request.budget_bytes or 1 << 62
        largest = [sizes for sizes in self.batches if sizes.max_nodes == request.max_nodes]
        self.sizes = largest[affordable([sizes.nbytes for sizes in largest], most)]
        """Batch sizes for a GPU; the process's plan may choose others."""
        self.groups = own_weights(self.cut, source)
        """The segments; those of packed layers are records once `exchange` was called."""
        self.layouts: Layouts = {}
        self.small_bytes = sum(weight.nbytes for weight in small_weights(self.cut, source))

        self.dequantised = decoder_needs.dequantised_bytes(self.model, self.cut, source)
        """Bytes of floats that each piece makes of its weights in every run."""

    @cached_property
    def whole_cut(self) -> Cut:
        """The cut whose pieces compute as they do in a session of all of them."""
        converts = any(name == ALWAYS for piece in self.cut.pieces for _, name in piece.inputs)
        return self._cut(by_piece=False) if converts or self.cut.scales else self.cut

    @property
    def fed_kinds(self) -> dict[str, int]:
        """Embeddings that a whole session need not look up, because tables are read by row outside
        it, with their element types."""
        found = ((name, self.source.weights.get(table)) for name, table in self.cut.embeddings)
        return {name: weight.kind for name, weight in found if weight and weight.can_be_bound}

    def exchange(self, layouts: Layouts) -> None:
        """Page packed layers by records of these layouts."""
        self.layouts = layouts
        if layouts:
            self.groups = with_records(self.groups, self.cut, self.source, layouts)

    @property
    def takes_single_tokens(self) -> bool:
        """True if each token needs a batch of its own."""
        return self.hides_nothing or self.has(BATCH_SCALED)

    def has(self, operators: Sequence[str]) -> bool:
        return has_any(self.model.graph, operators)


def _shapes_folded(graph: onnx.ModelProto, roles: Roles) -> onnx.ModelProto:
    """A copy of an export whose shapes are folded for batches of one row."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    del copy.graph.value_info[:]
    return folded(copy, [export_shapes(roles, *sizes) for sizes in ((1, 0), (3, 7), (64, 96))])
