"""A prepared GGUF model keeps the contract that plans are made on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgespec.models.embedded import embedded_pair
from edgespec.runtimes import ModelRequest, PreparedModel
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.options import GgufOptions
from prepared_contract import PreparedContract

REQUEST = ModelRequest(
    embedded_pair().target,
    "target",
    1024,
    17,
    17,
    1,
    options=GgufOptions(cache_type_k="f32", cache_type_v="f32"),
)


class TestPreparedGgufKeepsTheContract(PreparedContract):
    @pytest.fixture
    def prepare(self) -> Callable[[], PreparedModel]:
        return lambda: runtime.prepare(REQUEST)
