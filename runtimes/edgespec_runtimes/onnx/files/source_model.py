"""Reads an ONNX model's graph, the positions of its weights and its configuration, but no weights.

External data must be within the model's folder and as long as the graph claims.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from edgespec.errors import ModelError
from edgespec.files.regular import read_regular
from edgespec.paging.reader import Extent
from edgespec_runtimes.onnx.files.outline import INLINE_BYTES, THIS_FILE, read_outline
from edgespec_runtimes.onnx.files.roles import set_head_size

MODEL_FILE = "model.onnx"
MERGED_FILE = "decoder_model_merged.onnx"
"""File of older exports with two decoders, beside files with one of them."""
BROWSER_FOLDER = "onnx"
"""Folder of the graphs in repositories for browsers (Transformers.js)."""
GENAI_CONFIG = "genai_config.json"
MAX_CONFIG_BYTES = 64 << 20
_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Position, type and shape of a tensor in a file."""

    name: str
    kind: int
    """Element type, a value of TensorProto."""
    shape: tuple[int, ...]
    extent: Extent

    @property
    def nbytes(self) -> int:
        return self.extent.nbytes

    @property
    def is_aligned(self) -> bool:
        """True if its elements are aligned when the file is mapped."""
        item_bytes = max(1, self.nbytes // max(1, math.prod(self.shape)))
        return self.extent.offset % item_bytes == 0

    @property
    def can_be_bound(self) -> bool:
        """True if its type can be bound to an address in onnxruntime, which NumPy's own types
        can."""
        return helper.tensor_dtype_to_np_dtype(self.kind).isbuiltin == 1


@dataclass(frozen=True)
class SourceModel:
    """A model on disk; `model` contains small tensors and refers to others by name."""

    path: Path
    model: onnx.ModelProto
    files: tuple[Path, ...]
    """Files, by the index in `Extent.file_index`."""
    weights: Mapping[str, StoredWeight]
    notes: list[str] = field(default_factory=list)
    """Notes for the user on copies of its weights, shared with sources made from this one."""

    @property
    def folder(self) -> Path:
        """The folder of the configuration and the tokenizer.

        Repositories for browsers keep several graphs in a folder `onnx` below it.
        """
        own = self.path.parent
        is_below = own.name == BROWSER_FOLDER and not (own / "tokenizer.json").exists()
        return own.parent if is_below else own

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights.values())

    @property
    def unbound(self) -> tuple[str, ...]:
        """Names of weight types that cannot be bound; such a model cannot be paged."""
        kinds = {weight.kind for weight in self.weights.values() if not weight.can_be_bound}
        return tuple(TensorProto.DataType.Name(kind) for kind in sorted(kinds))

    def references(self) -> tuple[Path, dict[str, dict[str, str]]]:
        """A folder, and by weight the external data fields of a tensor in a file below it."""
        files = [file.resolve() for file in self.files]
        used = {files[weight.extent.file_index] for weight in self.weights.values()}
        folder = Path(os.path.commonpath([file.parent for file in used or files]))
        places = {
            weight.name: {
                "location": files[weight.extent.file_index].relative_to(folder).as_posix(),
                "offset": str(weight.extent.offset),
                "length": str(weight.extent.nbytes),
            }
            for weight in self.weights.values()
        }
        return folder, places

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / "config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        return read_json(self.folder / "generation_config.json")

    @cached_property
    def genai_config(self) -> dict[str, Any]:
        """The section `model` of onnxruntime-genai's configuration."""
        return section(read_json(self.folder / GENAI_CONFIG), "model")

    @property
    def genai_decoder(self) -> dict[str, Any]:
        """The section `decoder` of onnxruntime-genai's configuration."""
        return section(self.genai_config, "decoder")


def find_model(path: Path) -> Path | None:
    """The ONNX file at `path`, or in a folder at `path`; None if there is none."""
    if path.is_file():
        return path if path.suffix == ".onnx" else None
    if not path.is_dir():
        return None
    below = path / BROWSER_FOLDER
    usual = (path / _genai_file(path), below / MODEL_FILE, path / MERGED_FILE, below / MERGED_FILE)
    for file in usual:
        if _is_file(file):
            return file
    found = sorted(path.glob("*.onnx")) or sorted(below.glob("*.onnx"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:4])
        raise ModelError(f"{path} holds several ONNX models ({names}): name one of them")
    return found[0] if found else None


def named_model(path: Path) -> Path:
    """The ONNX file at `path`, or in a folder at `path`. Raises ModelError if there is none."""
    found = find_model(path)
    if found is None:
        raise ModelError(f"{path} is no ONNX model: name a file .onnx or its folder")
    return found


def read_source(path: Path) -> SourceModel:
    """Read the graph of the ONNX file at `path`. Raises ModelError."""
    outline = read_outline(path)
    try:
        model = onnx.ModelProto.FromString(outline)
    except DecodeError as error:
        raise ModelError(f"{path} is no ONNX model, or is damaged: {error}") from error
    if not model.graph.node:
        raise ModelError(f"{path} is no ONNX model: its graph is empty")
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise ModelError(f"{path} is damaged: a name in it is not UTF-8")
    files: dict[Path, int] = {path: 0}
    weights: dict[str, StoredWeight] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if tensor.name in weights:
            raise ModelError(f"{path} is damaged: the tensor {tensor.name} occurs twice")
        weight = _weight(path, tensor, files)
        if weight.nbytes <= INLINE_BYTES:
            _put_inline(tensor, weight, list(files))
        else:
            weights[tensor.name] = weight
    source = SourceModel(path, model, tuple(files), weights)
    head_size = source.genai_decoder.get("head_size")
    if isinstance(head_size, int) and head_size > 0:
        set_head_size(model.graph, head_size)
    return source


def refer(tensor: TensorProto, place: Mapping[str, str]) -> None:
    """Make a tensor refer to external data at `place`."""
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, text in place.items():
        tensor.external_data.add(key=key, value=text)


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    """All names in the graph; protobuf returns bytes for strings that are not UTF-8."""
    for node in graph.node:
        yield from (node.op_type, node.domain, *node.input, *node.output)
    for named in (*graph.initializer, *graph.input, *graph.output):
        yield named.name


def section(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A section of a configuration; empty if there is none."""
    inside = config.get(key)
    return inside if isinstance(inside, dict) else {}


def _is_file(path: Path) -> bool:
    """True for a file; false also for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def _genai_file(folder: Path) -> str:
    decoder = section(section(read_json(folder / GENAI_CONFIG), "model"), "decoder")
    name = decoder.get("filename")
    return name if isinstance(name, str) and Path(name).name == name else MODEL_FILE


def _weight(path: Path, tensor: TensorProto, files: dict[Path, int]) -> StoredWeight:
    where = {entry.key: entry.value for entry in tensor.external_data}
    shape = tuple(tensor.dims)
    try:
        offset, claimed = int(where.get("offset", 0)), int(where.get("length", -1))
    except ValueError:
        raise ModelError(f"{path} is damaged: {tensor.name} has no valid place") from None
    nbytes = _nbytes(path, tensor)
    if offset < 0 or claimed not in {-1, nbytes}:
        raise ModelError(
            f"{path} is damaged: {tensor.name} takes {nbytes:,} bytes, "
            f"its graph says {claimed:,} at offset {offset:,}; download or copy it again"
        )
    location = where.get("location", "")
    if not isinstance(location, str):  # protobuf returns bytes for a string that is not UTF-8
        raise ModelError(f"{path} is damaged: {tensor.name} has no valid place")
    file = path if location == THIS_FILE else _data_file(path, tensor.name, location)
    size = file.stat().st_size
    if offset + nbytes > size:
        raise ModelError(
            f"{file} is cut short: it ends at byte {size:,}, {tensor.name} reaches to "
            f"{offset + nbytes:,}; download or copy it again"
        )
    index = files.setdefault(file, len(files))
    return StoredWeight(tensor.name, tensor.data_type, shape, Extent(index, offset, nbytes))


def _nbytes(path: Path, tensor: TensorProto) -> int:
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{path} is damaged: {tensor.name} has the shape {list(tensor.dims)}")
    n_elements: int = math.prod(tensor.dims)
    if tensor.data_type in _BITS:
        return -(-n_elements * _BITS[tensor.data_type] // 8)
    try:
        item_bytes: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"{path}: {tensor.name} has the unknown element type {tensor.data_type}: export it as "
            "fp32 or fp16"
        ) from None
    return n_elements * item_bytes


def _data_file(path: Path, tensor: str, location: str) -> Path:
    """Path of a tensor's external data, which after following links must be in the model's folder.

    In a download cache, the model and its data are links into a common folder, which is allowed.
    """
    if (
        not location
        or "\0" in location
        or PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).drive
        or ".." in (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    ):
        raise ModelError(
            f"{path} keeps {tensor} in {location!r}, outside its own folder: "
            "that is refused; put the data beside the model and correct its location"
        )
    file = path.parent / location
    if not _is_file(file):
        raise ModelError(f"{path} keeps its weights in {location}, which is missing beside it")
    real = file.resolve()
    if not any(map(real.is_relative_to, (path.parent.resolve(), path.resolve().parent))):
        raise ModelError(
            f"{path} keeps {tensor} in {location}, a link out of its folder to {real}: "
            "that is refused; put the data itself beside the model"
        )
    return file


def _put_inline(tensor: TensorProto, weight: StoredWeight, files: list[Path]) -> None:
    with files[weight.extent.file_index].open("rb") as file:
        file.seek(weight.extent.offset)
        tensor.raw_data = file.read(weight.nbytes)
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty if it is missing. Raises ModelError if it is damaged."""
    try:
        content = json.loads(read_regular(path, MAX_CONFIG_BYTES))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {error}; download it again") from error
    return content if isinstance(content, dict) else {}


def read_text(path: Path, max_bytes: int) -> str | None:
    """Text of a file; None if it is missing. Raises ModelError."""
    try:
        return read_regular(path, max_bytes).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{path} cannot be read: {reason}") from error


def with_weights(model: onnx.ModelProto, source: SourceModel) -> tuple[onnx.ModelProto, Path]:
    """The graph with references to weights below one folder, and this folder."""
    folder, places = source.references()
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in places:
            refer(tensor, places[tensor.name])
    return whole, folder
