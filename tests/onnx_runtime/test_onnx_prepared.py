"""A prepared ONNX model keeps the contract that plans are made on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.registry import PreparedModel
from edgespec_runtimes.onnx import runtime
from onnx_files import write_llama
from onnx_models import request
from prepared_contract import PagedPreparedContract
from session_cases import PLAN


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_llama(path, layers=6, ffn=8192, context=512)
    return path


class TestPreparedOnnxKeepsTheContract(PagedPreparedContract):
    @pytest.fixture
    def prepare(self, folder: Path) -> Callable[[], PreparedModel]:
        return lambda: runtime.prepare(request(folder, ctx_size=512))


@pytest.mark.parametrize(
    ("dtype", "paged", "count"), [("float16", True, 1), ("float16", False, 0), ("float32", True, 0)]
)
@pytest.mark.costly
def test_a_note_names_half_precision_that_is_paged(
    dtype: str, paged: bool, count: int, tmp_path: Path
) -> None:
    prepared = runtime.prepare(request(write_llama(tmp_path, dtype=dtype)))
    notes = prepared.notes(replace(PLAN, paged=paged))
    prepared.close()
    assert sum("is in half precision" in note for note in notes) == count
