"""A prepared GGUF model keeps the contract that plans are made on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.errors import WeightReadError
from edgespec.models.embedded import embedded_pair
from edgespec.registry import PreparedModel
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.options import GgufOptions
from gguf_files import tiny_llama
from port_models import model_request
from prepared_contract import PagedPreparedContract

REQUEST = model_request(
    embedded_pair().target,
    ctx_size=1024,
    max_nodes=17,
    max_branches=17,
    options=GgufOptions(cache_type_k="f32", cache_type_v="f32"),
)


class TestPreparedGgufKeepsTheContract(PagedPreparedContract):
    @pytest.fixture
    def prepare(self) -> Callable[[], PreparedModel]:
        return lambda: runtime.prepare(REQUEST)


def test_a_file_written_to_while_it_is_loaded_is_an_error(tmp_path: Path) -> None:
    """Some weights were those of before, others not, and the texts of neither."""
    path = tiny_llama().write(tmp_path / "model.gguf")
    prepared = runtime.prepare(replace(REQUEST, path=path, ctx_size=64))

    def write(what: str, share: float) -> None:
        with path.open("r+b") as file:
            file.seek(-64, 2)
            file.write(bytes(64))

    with pytest.raises(WeightReadError):
        prepared.load(None, write)
    prepared.close()
