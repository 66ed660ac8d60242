"""Files in the cache folder are whole, or are written again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import numpy as np
import onnx
from onnx import TensorProto

from edgespec.errors import Cancelled
from edgespec.paging.reader import Extent
from edgespec_runtimes.onnx.files.source_model import SourceModel, StoredWeight, read_source
from edgespec_runtimes.onnx.weights import artifacts
from edgespec_runtimes.onnx.weights.paged import EmbeddingTable
from onnx_files import write_llama


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield artifacts.folder()
    assert not [file for file in artifacts.folder().glob(".*") if file.is_file()]


def test_weights_inside_a_graph_are_copied_once_to_aligned_places(
    tmp_path: Path, folder: Path
) -> None:
    source = read_source(write_llama(tmp_path / "model", external=False))
    copied = artifacts.aligned(source, lambda: False)
    for name, weight in copied.weights.items():
        assert weight.extent.offset % 64 == 0
        before = source.weights[name].extent
        original = source.path.read_bytes()[before.offset : before.offset + before.nbytes]
        begin = weight.extent.offset
        assert copied.files[0].read_bytes()[begin : begin + weight.nbytes] == original
    written = copied.files[0].stat().st_ino
    assert artifacts.aligned(source, lambda: False).files[0].stat().st_ino == written


def test_a_copy_that_was_written_to_is_made_again_with_a_note(tmp_path: Path) -> None:
    """A damaged byte once gave another text."""
    model = write_llama(tmp_path / "model", external=False)
    (copy,) = artifacts.aligned(read_source(model), lambda: False).files
    whole = copy.read_bytes()
    with copy.open("r+b") as file:
        file.seek(len(whole) // 2)
        file.write(bytes([whole[len(whole) // 2] ^ 1]))
    source = read_source(model)
    assert artifacts.aligned(source, lambda: False).files == (copy,)
    assert copy.read_bytes() == whole
    assert source.notes == [f"{copy} was not as it had been written, and was made again"]
    again = read_source(model)
    artifacts.aligned(again, lambda: False)
    assert again.notes == []


def test_a_changed_model_replaces_the_copy_of_the_old_one(tmp_path: Path, folder: Path) -> None:
    for seed in range(3):
        path = write_llama(tmp_path / "model", external=False, seed=seed)
        artifacts.aligned(read_source(path), lambda: False)
    assert len(list(folder.iterdir())) == 1


def test_aligned_weights_stay_where_they_are(tmp_path: Path, folder: Path) -> None:
    source = read_source(write_llama(tmp_path / "model"))
    assert artifacts.aligned(source, lambda: False) is source
    assert not folder.exists()


def test_copying_can_be_cancelled_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    source = read_source(write_llama(tmp_path / "model", external=False))
    with pytest.raises(Cancelled):
        artifacts.aligned(source, lambda: True)
    assert not list(folder.iterdir())


@pytest.fixture
def table(tmp_path: Path) -> tuple[SourceModel, np.ndarray]:
    """A model of one table, [hidden, tokens], that begins somewhere in a file."""
    values = np.random.default_rng(0).standard_normal((24, 1000)).astype(np.float16)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"12345" + values.tobytes())
    weight = StoredWeight("table", TensorProto.FLOAT16, values.shape, Extent(0, 5, values.nbytes))
    return SourceModel(path, onnx.ModelProto(), (path,), {"table": weight}), values


@pytest.mark.parametrize("copy_bytes", [1, 1000, 1 << 20])
def test_a_table_that_lies_by_column_is_looked_up_by_row(
    copy_bytes: int,
    table: tuple[SourceModel, np.ndarray],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(artifacts, "_COPY_BYTES", copy_bytes)
    source, values = table
    shares: list[float] = []
    by_row = artifacts.by_row(source, "table", lambda: False, lambda _, share: shares.append(share))
    ids = np.array([[0, 999, 7], [7, 500, 0]])
    with EmbeddingTable(by_row, by_row.weights["table"]) as embeddings:
        assert np.array_equal(embeddings.rows(ids), values.T[ids])
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
