"""The header agrees with the file's content, for one file and for several."""

from __future__ import annotations

import copy
import ctypes
import tracemalloc
from pathlib import Path

import pytest

from edgespec.errors import ModelError
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import GgufArray, read_header
from edgespec_runtimes.gguf.file.layout import TENSOR_TYPES
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib
from gguf_files import ARRAY, F32, I32, STRING, U16, U32, Gguf, Tensor, tiny_llama
from port_models import model_request
from sentences import refuses


def stored(path: Path, offset: int, n_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(n_bytes)


def split(model: Gguf, folder: Path, n_parts: int) -> list[Path]:
    """The model in files named as llama.cpp names them; the tensors take turns."""
    paths = []
    for index in range(n_parts):
        part = copy.deepcopy(model) if index == 0 else Gguf()
        part.tensors = model.tensors[index::n_parts]
        part.metadata["split.no"] = (U16, index)
        part.metadata["split.count"] = (U16, n_parts)
        part.metadata["split.tensors.count"] = (I32, len(model.tensors))
        paths.append(part.write(folder / f"m-{index + 1:05d}-of-{n_parts:05d}.gguf"))
    return paths


@pytest.mark.parametrize("alignment", [32, 64, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_tensors_lie_where_the_header_says(tmp_path: Path, version: int, alignment: int) -> None:
    model = tiny_llama()
    model.version, model.alignment = version, alignment
    model.metadata["general.alignment"] = (U32, alignment)
    header = read_header(model.write(tmp_path / "m.gguf"))
    assert header.alignment == alignment
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in model.tensors]
    for entry, tensor in zip(header.tensors, model.tensors, strict=True):
        assert entry.shape == tensor.shape
        assert stored(header.path, entry.offset, entry.nbytes) == tensor.data


def test_description_of_a_model(tmp_path: Path) -> None:
    path = tiny_llama(embedding=64, layers=2).write(tmp_path / "m.gguf")
    header = read_header(path)
    assert (header.architecture, header.name) == ("llama", "tiny")
    assert (header.n_layers, header.embedding_length, header.context_length) == (2, 64, 128)
    assert header.n_vocab == 297
    assert header.paths == (header.path,) == (path,)
    assert 0 < header.weight_bytes < path.stat().st_size


def test_arrays_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    model = Gguf({"a.texts": (ARRAY, STRING, ["x", "", "é", b"\xff"])})
    model.metadata["a.numbers"] = (ARRAY, F32, [0.5, -1.0])
    metadata = read_header(model.write(tmp_path / "m.gguf")).metadata
    texts, numbers = metadata["a.texts"], metadata["a.numbers"]
    assert isinstance(texts, GgufArray) and isinstance(numbers, GgufArray)
    assert texts.values() == ["x", "", "é", "\udcff"]
    assert list(texts.strings()) == [b"x", b"", b"\xc3\xa9", b"\xff"]
    assert numbers.values() == [0.5, -1.0]


@pytest.mark.slow
def test_a_large_vocabulary_takes_no_memory(tmp_path: Path) -> None:
    model = tiny_llama()
    model.metadata["big"] = (ARRAY, STRING, [f"token {index}" for index in range(100_000)])
    path = model.write(tmp_path / "m.gguf")
    tracemalloc.start()
    try:
        read_header(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20 < path.stat().st_size


def test_types_are_those_of_llama_cpp() -> None:
    ggml = abi.library("ggml-base")
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    assert {k.code: (k.name, k.block_size, k.block_bytes) for k in TENSOR_TYPES.values()} == {
        code: (ggml.ggml_type_name(code).decode().upper(), ggml.ggml_blck_size(code), n_bytes)
        for code in range(lib.GGML_TYPE_COUNT)
        if (n_bytes := ggml.ggml_type_size(code))  # removed types have no size
    }


@pytest.mark.parametrize("named", [0, 2])
def test_any_part_stands_for_the_whole_split_model(tmp_path: Path, named: int) -> None:
    model = tiny_llama()
    paths = split(model, tmp_path, 3)
    header = read_header(paths[named])
    validate(header)
    assert header.paths == tuple(paths)
    assert header.architecture == "llama"
    assert len(header.tensors) == len(model.tensors)
    for entry in header.tensors:
        data = stored(paths[entry.file_index], entry.offset, entry.nbytes)
        assert data == model.tensor(entry.name).data


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tiny_llama(), tmp_path, 3)
    paths[1].unlink()
    with refuses(ModelError):
        read_header(paths[0])


def test_a_part_with_another_name_is_refused(tmp_path: Path) -> None:
    path = split(tiny_llama(), tmp_path, 2)[0]
    with refuses(ModelError):
        read_header(path.rename(tmp_path / "model.gguf"))


@pytest.mark.parametrize(("number", "name"), [(1, "other"), (0, "other"), (1, "token_embd.weight")])
def test_parts_of_different_models_are_refused(tmp_path: Path, number: int, name: str) -> None:
    """llama.cpp refuses them before anything is planned."""
    first, second = split(tiny_llama(), tmp_path, 2)
    part = Gguf({"split.no": (U16, number), "split.count": (U16, 2)})
    part.tensors = [Tensor(name, (32,), 0, bytes(128))]
    part.write(second)
    with pytest.raises(ModelError):
        runtime.prepare(model_request(first))
