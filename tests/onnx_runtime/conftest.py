"""Infers what is known of a graph by its bytes once for all tests that prepare it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

Shapes = Mapping[str, tuple[int, ...]]


@pytest.fixture(autouse=True, scope="module")
def inferred_once() -> Iterator[None]:
    """Shapes and folded graphs, kept by the graph and the shapes of its inputs: a third of the
    time of preparing a small model, and tests prepare few models many times."""
    onnx = pytest.importorskip("onnx", reason="the ONNX runtime is not installed")
    rooms = "edgespec_runtimes.onnx.graph", "edgespec_runtimes.onnx.prepare"
    shapes, fusing = (
        importlib.import_module(f"{rooms[0]}.{name}") for name in ("shapes", "fusing")
    )
    folding, fitting = (
        importlib.import_module(f"{rooms[1]}.{name}") for name in ("folding", "fitting")
    )
    prepared = importlib.import_module("edgespec_runtimes.onnx.prepared")
    infer, folded = shapes.infer, folding.folded
    known: dict[object, dict[str, object]] = {}
    kept: dict[object, bytes] = {}

    def key(model: onnx.ModelProto, *sizes: Shapes | None) -> object:
        return model.SerializeToString(), *(size and tuple(sorted(size.items())) for size in sizes)

    def inferred(model: onnx.ModelProto, feeds: Shapes | None = None) -> dict[str, object]:
        asked = key(model, feeds)
        if asked not in known:
            known[asked] = infer(model, feeds)
        return dict(known[asked])

    def folded_once(model: onnx.ModelProto, sizes: Sequence[Shapes]) -> onnx.ModelProto:
        asked = key(model, *sizes)
        if asked not in kept:
            kept[asked] = folded(model, sizes).SerializeToString()
        else:
            model.ParseFromString(kept[asked])
        return model

    with pytest.MonkeyPatch.context() as patch:
        for module in (shapes, fusing, folding, fitting):
            patch.setattr(module, "infer", inferred)
        patch.setattr(fitting, "folded", folded_once)
        patch.setattr(prepared, "trim_heap", lambda: None)
        yield
