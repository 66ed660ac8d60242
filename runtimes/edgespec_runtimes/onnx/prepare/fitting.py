"""A decoder's graph made ready for what is to compute it: rewritten, cut, its batches sized, and a
session for each graph of the cut.

A GPU needs it otherwise than the CPU. Knows no budget; where weights come from is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edgespec.concurrency.owning import Closeable
from edgespec.memory.needs import affordable
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.onnx.files.roles import Roles
from edgespec_runtimes.onnx.files.source import Source
from edgespec_runtimes.onnx.graph.cutting import cut
from edgespec_runtimes.onnx.graph.flow import FUSED_ATTENTION
from edgespec_runtimes.onnx.graph.rewriting import rewritten
from edgespec_runtimes.onnx.memory import needs
from edgespec_runtimes.onnx.ort.devices import CPU, Device
from edgespec_runtimes.onnx.ort.sessions import OrtSession
from edgespec_runtimes.onnx.prepare.folding import folded, sizes_to_compare
from edgespec_runtimes.onnx.prepare.masks import find_masks
from edgespec_runtimes.onnx.weights.paged import own_weights, small_weights


class FittedDecoder(Closeable):
    """One decoder for one device."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        roles: Roles,
        source: Source,
        request: ModelRequest,
        n_ctx: int,
        capacity: int,
        device: Device,
    ) -> None:
        where = str(source.path)
        self.device = device
        self.where = where
        # CUDA's fused attention refuses a bias, which is how it would be given a mask of ours
        self.refuses_masks = device.has_memory and _has(graph, [FUSED_ATTENTION])
        self.masks = () if self.refuses_masks else find_masks(graph, roles, capacity, where)
        most_new = max(needs.CHUNKS[0], request.max_nodes)
        sizes = sizes_to_compare(roles, self.masks, most_new, capacity)
        self.model = folded(rewritten(graph, roles, self.masks, where), sizes)
        shapes = {weight.name: weight.shape for weight in source.weights.values()}
        self.cut = cut(self.model, roles, shapes, where, converts_halves=not device.has_memory)
        self.batches = needs.batch_sizes(self.model, roles, self.masks, self.cut, request, n_ctx)
        most = request.budget_bytes or 1 << 62
        largest = [sizes for sizes in self.batches if sizes.max_nodes == request.max_nodes]
        self.sizes = largest[affordable([sizes.nbytes for sizes in largest], most)]
        """Batch sizes for a GPU; the process's plan may choose others."""
        self.groups = own_weights(self.cut, source)
        self.small_bytes = sum(weight.nbytes for weight in small_weights(self.cut, source))
        self.sessions: list[OrtSession] = []

    def has(self, operators: Sequence[str]) -> bool:
        return _has(self.model, operators)

    def make_sessions(self, n_threads: int, most_bytes: int = 0) -> None:
        """One for each graph of the cut, without weights; instead of those made before.

        `most_bytes`: what each may allocate on a device with memory of its own.
        """
        self.close()
        device = self.device if self.device.has_memory else CPU
        for graph in self.cut.graphs:
            self.sessions.append(
                OrtSession(graph, self.where, n_threads, device.providers(most_bytes))
            )

    @property
    def is_refused(self) -> bool:
        """True if onnxruntime gave a session another provider than it was asked for."""
        provider = self.device.provider if self.device.has_memory else CPU.provider
        return any(provider not in session.providers for session in self.sessions)

    def close(self) -> None:
        while self.sessions:
            self.sessions.pop().close()


def _has(model: onnx.ModelProto, operators: Sequence[str]) -> bool:
    return any(node.op_type in operators for node in model.graph.node)
