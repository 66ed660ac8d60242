"""Opens ONNX models for tests: resident, or paged with room for a share of the weights."""

from __future__ import annotations

from pathlib import Path

from edgespec.runtimes import ModelRequest
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.model import OnnxModel
from paging_contract import load_paged

N_CTX = 128


def request(path: Path, **options: object) -> ModelRequest:
    usual: dict[str, object] = {"ctx_size": N_CTX, "max_nodes": 17, "max_branches": 8}
    return ModelRequest(path=path, owner="target", n_threads=1, **usual | options)  # type: ignore[arg-type]


def open_resident(path: Path, **options: object) -> OnnxModel:
    prepared = runtime.prepare(request(path, **options))
    try:
        model = prepared.load(None)
        assert isinstance(model, OnnxModel)
        return model
    finally:
        prepared.close()


def open_paged(path: Path, share: float = 0.5, **options: object) -> OnnxModel:
    """Paged, with room for a share of the weights; 0 is the smallest budget."""
    model = load_paged(runtime.prepare(request(path, **options)), share)
    assert isinstance(model, OnnxModel)
    return model
