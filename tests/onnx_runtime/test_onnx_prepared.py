"""A prepared ONNX model keeps the contract that plans are made on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.runtimes import PreparedModel
from edgespec.testing.prepared_contract import PreparedContract
from edgespec_runtimes.onnx import runtime
from onnx_files import write_llama
from onnx_models import request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_llama(path, layers=6, ffn=8192, context=512)
    return path


class TestPreparedOnnxKeepsTheContract(PreparedContract):
    @pytest.fixture
    def prepare(self, folder: Path) -> Callable[[], PreparedModel]:
        return lambda: runtime.prepare(request(folder, ctx_size=512))
