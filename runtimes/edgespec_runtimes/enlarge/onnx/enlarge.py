"""Writes a bigger ONNX model that computes the same function, from an export of a LLaMA.

The weights of the export are recognised and a graph of more and wider layers is written for them
(docs/decisions/0009); `replication` explains how tensors grow. Runs no model.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.errors import ModelError, UsageError
from edgespec.files.unfinished import unfinished_folder
from edgespec.values import ENLARGED_FROM, EnlargeReport
from edgespec_runtimes.enlarge.onnx.llama import Llama, recognise
from edgespec_runtimes.enlarge.onnx.llama_graph import (
    EMBEDDING,
    HEAD,
    IR_VERSION,
    NORM,
    OPSET,
    LlamaGraph,
    build,
    tensor_name,
)
from edgespec_runtimes.enlarge.onnx.replication import OnnxRole, layer_roles, model_roles
from edgespec_runtimes.enlarge.sizing import (
    Layer,
    LlamaShape,
    check_original,
    check_room,
    choose,
    spread,
    writing,
)
from edgespec_runtimes.onnx.files.source import MODEL_FILE, Source, find_model, read_source

if TYPE_CHECKING:
    from edgespec.ports import Progress

DATA_FILE = "model.onnx_data"
ALIGNMENT = 4096
"""Alignment of tensors in their file: whole pages can be mapped, and read past the page cache."""
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""Files beside the source that are copied unchanged."""


class OnnxEnlarger:
    """Implements `edgespec.models.enlarging.Enlarger`."""

    def recognises(self, source: Path) -> bool:
        return find_model(source) is not None

    def quantise(
        self, source: Path, folder: Path, kind: str, progress: Progress | None = None
    ) -> Path:
        raise UsageError(
            f"--type {kind} is for GGUF: {source} stays in the type that it was exported in"
        )

    def enlarge(
        self, source: Path, out: Path, size_bytes: int, progress: Progress | None = None
    ) -> EnlargeReport:
        return enlarge(source, out, size_bytes, progress)


tool = OnnxEnlarger()


def enlarge(
    source: Path, out: Path, size_bytes: int, progress: Progress | None = None
) -> EnlargeReport:
    """Write to the folder `out` a model of about `size_bytes` that computes what `source` does.

    Memory stays constant; the files appear in `out` when they are complete. Raises ModelError for a
    source that cannot be enlarged, UsageError for a size that cannot be reached within 2 %,
    EdgespecError when the disk is too small or fails.
    """
    path = find_model(source)
    if path is None:
        raise ModelError(f"{source} holds no ONNX model: name a file .onnx or its folder")
    read = read_source(path)
    _check_place(read, out)
    planner = _Planner(read)
    plan = choose(path, planner.plan, len(planner.llama.layers), size_bytes)
    check_room(out, plan.size_bytes)
    with writing(out), unfinished_folder(out) as part:
        _write(part, read, plan, progress)
        out.mkdir(exist_ok=True)
        for file in sorted(part.iterdir(), key=lambda file: file.name == MODEL_FILE):
            file.replace(out / file.name)
    return EnlargeReport(out, plan.size_bytes, plan.factor, len(plan.layers), plan.parameters)


@dataclass(frozen=True, slots=True)
class _OnnxTensor:
    """One tensor of the result, and where it comes from."""

    name: str
    source: str
    role: OnnxRole
    factor: int
    kind: int
    """Element type, of TensorProto."""
    silent: bool
    """Muted altogether, so that its layer adds nothing."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.role.grown(self.factor)

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.n_elements * _dtype(self.kind).itemsize


@dataclass(frozen=True)
class _OnnxPlan:
    factor: int
    layers: tuple[Layer, ...]
    shape: LlamaShape
    tensors: tuple[_OnnxTensor, ...]
    model: onnx.ModelProto
    """The graph, with every tensor in its place in DATA_FILE."""

    @cached_property
    def size_bytes(self) -> int:
        data = sum(_padded(tensor.nbytes) for tensor in self.tensors)
        return data + int(self.model.ByteSize())

    @property
    def layer_bytes(self) -> float:
        """Mean size of a layer, its nodes included."""
        outside = (tensor.nbytes for tensor in self.tensors if ".layers." not in tensor.name)
        return (self.size_bytes - sum(outside)) / len(self.layers)

    @property
    def parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)


class _Planner:
    """State that all plans for one source share."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.llama = recognise(source)
        properties = {entry.key: entry.value for entry in self.llama.model.metadata_props}
        check_original(source.path, properties.get(ENLARGED_FROM))
        self._tensors = self.llama.tensors
        self.shape = _shape(self.llama)

    def plan(self, factor: int, n_layers: int) -> _OnnxPlan:
        layers = spread(len(self.llama.layers), n_layers)
        tensors = tuple(self._grown_tensors(factor, layers))
        model = self._model(factor, layers, tensors)
        return _OnnxPlan(factor, layers, self.shape.grown(factor), tensors, model)

    def _grown_tensors(self, factor: int, layers: tuple[Layer, ...]) -> Iterator[_OnnxTensor]:
        """The result's tensors in the order in which they are read."""
        of_model, of_each_layer = model_roles(self.shape), layer_roles(self.shape)
        grown = partial(self._grown, factor)
        yield grown(EMBEDDING, self.llama.embedding, of_model["embedding"])
        for index, layer in enumerate(layers):
            for part, role in of_each_layer.items():
                name: str = getattr(self.llama.layers[layer.source], part)
                silent = layer.silent and role.feeds_residual
                yield grown(tensor_name(index, part), name, role, silent)
        yield grown(NORM, self.llama.norm, of_model["norm"])
        if self.llama.head is not None:
            yield grown(HEAD, self.llama.head, of_model["head"])

    def _grown(
        self, factor: int, name: str, source: str, role: OnnxRole, silent: bool = False
    ) -> _OnnxTensor:
        tensor = self._tensors[source]
        if tuple(tensor.dims) != role.shape:
            raise ModelError(
                f"{self._source.path}: {source} {list(tensor.dims)} is no part of a plain LLaMA, "
                "which is all that can be enlarged"
            )
        return _OnnxTensor(name, source, role, factor, tensor.data_type, silent)

    def _model(
        self, factor: int, layers: tuple[Layer, ...], tensors: tuple[_OnnxTensor, ...]
    ) -> onnx.ModelProto:
        llama, shape = self.llama, self.shape.grown(factor)
        graph = build(
            LlamaGraph(
                layers=len(layers),
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_size=shape.head_size,
                epsilon=llama.epsilon,
                frequencies=llama.frequencies,
                kv_kind=llama.roles.kv_kind,
                residual_kind=llama.residual_kind,
                logits_kind=llama.logits_kind,
                kinds={tensor.name: tensor.kind for tensor in tensors},
            ),
            shape.vocabulary,
        )
        offset = 0
        for tensor in tensors:
            graph.initializer.append(_external(tensor, offset))
            offset += _padded(tensor.nbytes)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        model.producer_name = "edgespec"
        helper.set_model_props(model, {ENLARGED_FROM: _name(self._source)})
        return model


def _shape(llama: Llama) -> LlamaShape:
    tensors, roles = llama.tensors, llama.roles
    vocabulary, hidden = tensors[llama.embedding].dims
    first = llama.layers[0]
    return LlamaShape(
        hidden=hidden,
        ffn=tensors[first.gate].dims[1],
        heads=tensors[first.query].dims[1] // roles.head_size,
        kv_heads=roles.kv_heads,
        head_size=roles.head_size,
        vocabulary=vocabulary,
        tied=llama.head is None,
    )


def _external(tensor: _OnnxTensor, offset: int) -> TensorProto:
    """The description of a tensor that lies in DATA_FILE."""
    described = TensorProto(name=tensor.name, data_type=tensor.kind, dims=tensor.shape)
    described.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA_FILE), ("offset", offset), ("length", tensor.nbytes)):
        described.external_data.add(key=key, value=str(value))
    return described


def _check_place(source: Source, out: Path) -> None:
    if out.is_file() or out.suffix == ".onnx" or not out.parent.is_dir():
        raise UsageError(f"{out} must be a folder, new or not, in a folder that exists")
    if out.exists() and out.samefile(source.folder):
        raise UsageError(f"{out} is the source itself: write the enlarged model elsewhere")


def _write(folder: Path, source: Source, plan: _OnnxPlan, progress: Progress | None) -> None:
    (folder / MODEL_FILE).write_bytes(plan.model.SerializeToString())
    config = json.dumps(_config(source, plan), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    for name in COPIED:
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, folder / name)
    with (folder / DATA_FILE).open("wb", buffering=1 << 20) as file:
        _write_tensors(file, source, plan, progress)
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(
    file: BinaryIO, source: Source, plan: _OnnxPlan, progress: Progress | None
) -> None:
    written, whole = 0, sum(_padded(tensor.nbytes) for tensor in plan.tensors)
    for tensor in plan.tensors:
        values = _values(source, tensor.source)
        file.writelines(tensor.role.content(values, tensor.factor, tensor.silent))
        file.write(bytes(_padded(tensor.nbytes) - tensor.nbytes))
        written += _padded(tensor.nbytes)
        if progress is not None:
            progress("enlarging", written / whole)


def _values(source: Source, name: str) -> np.ndarray:
    """The tensor, mapped from its file where it is not in the graph."""
    weight = source.weights.get(name)
    if weight is None:
        tensors = {tensor.name: tensor for tensor in source.model.graph.initializer}
        return numpy_helper.to_array(tensors[name])
    file = source.files[weight.extent.file_index]
    return np.memmap(file, _dtype(weight.kind), "r", weight.extent.offset, weight.shape)


def _config(source: Source, plan: _OnnxPlan) -> dict[str, object]:
    """The source's configuration with the numbers that changed."""
    shape = plan.shape
    return source.config | {
        "num_hidden_layers": len(plan.layers),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
    }


def _name(source: Source) -> str:
    """Name of the source: its own, or that of its folder."""
    name = source.config.get("_name_or_path")
    return Path(name).name if isinstance(name, str) and name else source.folder.resolve().name


def _dtype(kind: int) -> np.dtype[np.generic]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
