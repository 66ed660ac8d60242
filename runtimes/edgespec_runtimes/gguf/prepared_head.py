"""Opens EAGLE-3 heads: drafts that read hidden states of their target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgespec.errors import ModelError
from edgespec.memory.budget import MemoryRow
from edgespec.memory.needs import ModelNeeds
from edgespec.runtimes import ModelRequest
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.heads import head_shape
from edgespec_runtimes.gguf.head import GgufHead
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.options import GgufOptions
from edgespec_runtimes.gguf.prepared import PreparedGguf


class PreparedHead(PreparedGguf):
    """Implements `PreparedModel`, and `edgespec.ports.features.WantsFeatures`."""

    def __init__(self, request: ModelRequest, header: GgufFile) -> None:
        self._head = head_shape(header)
        if GgufOptions.of(request.options).servers_of(request.owner):
            raise ModelError(
                f"{header.path} is a head, which is computed here: leave its RPC servers out"
            )
        super().__init__(replace(request, n_texts=1), header)

    @property
    def feature_layers(self) -> Sequence[int]:
        return self._head.layers

    @property
    def feature_values(self) -> int:
        return self._head.n_values

    def needs(self) -> ModelNeeds:
        needs = super().needs()
        n_values = self._header.embedding_length
        shape, _ = self._measured.contexts[0]
        n_fused = self._head.n_values * len(self._head.layers)
        # those of the text, those of nodes and llama.cpp's own, and what is being fused
        n_rows = self.info.n_ctx + 3 * shape.n_rows
        nbytes = 4 * (n_rows * n_values + 4 * shape.n_rows * n_fused)
        row = MemoryRow(self._request.owner, "features of the text", nbytes)
        return replace(needs, fixed=(*needs.fixed, row))

    def _new_model(self, *parts: Any, **settings: Any) -> GgufModel:
        return GgufHead(*parts, head=self._head, **settings)
