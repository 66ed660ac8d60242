"""A model computes the same however its weights were saved: beside it, inside it, as raw bytes or
as numbers, by onnx or by onnxruntime's quantisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edgespec.ports import LanguageModel
from edgespec_runtimes.onnx.files.source_model import read_source
from onnx_files import DATA_FILE, write_llama
from onnx_models import open_paged, open_resident
from onnx_reference import WholeModel
from paging_contract import one_by_one

SIZES = {"layers": 1, "hidden": 64, "vocab": 300}
TOKENS = [7, 21, 42]
KINDS: dict[str, dict[str, object]] = {
    "fp32": {},
    "fp16": {"dtype": "float16"},
    "int8": {"bits": 8},
    "four bits": {"bits": 4, "fused": True},
}

Save = Callable[[onnx.ModelProto, Path], None]


def inline(model: onnx.ModelProto, path: Path) -> None:
    onnx.save(model, path)


def in_one_file_each(model: onnx.ModelProto, path: Path) -> None:
    onnx.save_model(
        model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0
    )


def everything_beside(model: onnx.ModelProto, path: Path) -> None:
    onnx.save_model(model, path, save_as_external_data=True, location=DATA_FILE, size_threshold=0)


def as_numbers(model: onnx.ModelProto, path: Path) -> None:
    """In the field of each type: float_data, int32_data, int64_data ..."""
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).ravel()
        numbers = helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, values)
        tensor.CopyFrom(numbers)
        assert not tensor.raw_data
    onnx.save(model, path)


def with_places_left_over(model: onnx.ModelProto, path: Path) -> None:
    """A location was noted, and never written to."""
    onnx.external_data_helper.convert_model_to_external_data(
        model, location="never_written", size_threshold=0
    )
    path.write_bytes(model.SerializeToString())


def location_first(model: onnx.ModelProto, path: Path) -> None:
    """A writer that orders fields otherwise: data_location before raw_data."""
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    parts = []
    for tensor in tensors:
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.DEFAULT
        rest = TensorProto(raw_data=content).SerializeToString()
        parts.append(field(5, tensor.SerializeToString() + rest))
    graph = model.graph.SerializeToString() + b"".join(parts)
    model.ClearField("graph")
    path.write_bytes(model.SerializeToString() + field(7, graph))


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    length, left = b"", len(content)
    while left > 0x7F:
        length += bytes([left & 0x7F | 0x80])
        left >>= 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + content


SAVES: dict[str, Sequence[Save]] = {
    "fp32": [
        *(inline, in_one_file_each, everything_beside),
        *(as_numbers, with_places_left_over, location_first),
    ],
    "fp16": [as_numbers],
    "int8": [as_numbers],
    "four bits": [as_numbers],
}


def logits(model: LanguageModel) -> np.ndarray:
    with closing(model):
        return one_by_one(model, TOKENS)


@pytest.fixture(scope="module")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("exported"), **SIZES | KINDS[request.param])


@pytest.fixture(scope="module")
def expected(exported: Path) -> list[np.ndarray]:
    return [logits(opened(exported)) for opened in ways(exported)]


def ways(path: Path) -> list[Callable[[Path], LanguageModel]]:
    """Ways to open a model: resident and, unless its types cannot be paged, paged."""
    return [open_resident] if read_source(path).unbound else [open_resident, open_paged]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exported", "save"),
    [(kind, save) for kind, saves in SAVES.items() for save in saves],
    indirect=["exported"],
    scope="module",
)
def test_a_model_saved_otherwise(
    save: Save, exported: Path, expected: Sequence[np.ndarray], tmp_path: Path
) -> None:
    saved = copied(exported, tmp_path)
    save(onnx.load(exported), saved)
    found = [logits(opened(saved)) for opened in ways(saved)]
    assert all(map(np.array_equal, found, expected))


def copied(exported: Path, folder: Path) -> Path:
    """The place of a model in another folder, with everything beside it but weights."""
    for name in ("config.json", "genai_config.json", "tokenizer.json"):
        if (exported.parent / name).exists():
            (folder / name).write_bytes((exported.parent / name).read_bytes())
    return folder / "model.onnx"


@pytest.mark.costly
@pytest.mark.parametrize(
    ("kind", "per_channel", "beside"),
    [
        (QuantType.QInt8, False, False),
        (QuantType.QUInt8, True, False),
        (QuantType.QInt8, True, True),
    ],
)
def test_a_model_quantised_by_onnxruntime(
    kind: QuantType, per_channel: bool, beside: bool, tmp_path: Path
) -> None:
    """int8 as docs/models.md promises: logits are those of onnxruntime, token by token."""
    exported = write_llama(tmp_path / "exported", **SIZES | {"layers": 2})
    everything_beside(onnx.load(exported), exported)
    (tmp_path / "int8").mkdir()
    path = copied(exported, tmp_path / "int8")
    quantize_dynamic(
        exported, path, weight_type=kind, per_channel=per_channel, use_external_data_format=beside
    )
    kinds = {weight.kind for weight in read_source(path).weights.values()}
    assert {TensorProto.INT8, TensorProto.UINT8} & kinds
    reference = WholeModel(path).decode_all(TOKENS)
    for model in (open_resident(path), open_paged(path)):
        assert np.allclose(logits(model), reference, atol=1e-4)
