"""Makes ONNX models for tests and opens them: resident, or paged with room for some weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.graph.rewriting import new_name, past_name
from edgespec_runtimes.onnx.model import OnnxModel
from onnx_files import write_llama
from paging_contract import load_paged
from port_contract import PortContract

N_CTX = 128


def request(path: Path, **options: object) -> ModelRequest:
    usual: dict[str, object] = {"ctx_size": N_CTX, "max_nodes": 17, "max_branches": 8}
    return ModelRequest(path=path, owner="target", n_threads=1, **usual | options)  # type: ignore[arg-type]


def open_resident(path: Path, **options: object) -> OnnxModel:
    with closing(runtime.prepare(request(path, **options))) as prepared:
        model = prepared.load(None)
        assert isinstance(model, OnnxModel)
        return model


def open_paged(path: Path, share: float = 0.5, **options: object) -> OnnxModel:
    """Paged, with room for a share of the weights; 0 is the smallest budget."""
    model = load_paged(runtime.prepare(request(path, **options)), share)
    assert isinstance(model, OnnxModel)
    return model


def about_the_cache(path: Path, layer: int, part: str) -> set[str]:
    """Operators of a computed graph that read the past, and those whose results are new entries."""
    with closing(runtime.prepare(request(path))) as prepared:
        nodes = prepared._deployed.fitted.model.graph.node
    past, new = past_name(layer, part), new_name(layer, part)
    return {node.op_type for node in nodes if past in node.input or new in node.output}


def made_in(folder: Path, layers: int) -> Callable[..., Path]:
    """Writes a small decoder of a kind, of so many layers if it does not say, once each."""

    def path_of(**kind: object) -> Path:
        path = folder / ("_".join(f"{key}{value}" for key, value in kind.items()) or "plain")
        if not path.exists():
            write_llama(path, **{"layers": layers, **kind})  # type: ignore[arg-type]
        return path

    return path_of


class ContractOfKind(PortContract):
    """The port's contract for one kind of model, opened in one way."""

    opened: ClassVar[Callable[[Path], LanguageModel]]
    kind: ClassVar[Mapping[str, object]] = {}

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: type(self).opened(models(**self.kind))
