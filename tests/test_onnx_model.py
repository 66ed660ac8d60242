"""The ONNX runtime keeps the port's contract: a tree by a mask or by rows, resident and paged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")


from edgespec.ports import LanguageModel
from onnx_files import write_llama
from onnx_models import open_paged, open_resident
from port_contract import PortContract

pytestmark = pytest.mark.usefixtures("own_cache")

FITTING = sys.modules["edgespec_runtimes.onnx.fitting"]
"""The module: its package calls what it makes by the same name."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("models")

    def made(**kind: object) -> Path:
        path = folder / ("_".join(f"{key}{value}" for key, value in kind.items()) or "plain")
        if not path.exists():
            write_llama(path, **{"layers": 2, **kind})  # type: ignore[arg-type]
        return path

    return made


@pytest.fixture
def fed_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are taken for such that take no mask of ours."""
    monkeypatch.setattr(FITTING, "find_masks", lambda *_: ())


class TestResidentKeepsTheContract(PortContract):
    atol = 1e-4

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_resident(models())


class TestPagedKeepsTheContract(PortContract):
    atol = 1e-4

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models())


class TestHalfPrecisionWithNothingPinnedKeepsTheContract(PortContract):
    atol = 0.02

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(dtype="float16"), share=0.0)


class TestWeightsInTheGraphKeepTheContract(PortContract):
    atol = 1e-3

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(external=False, tied=True))


class TestFusedAttentionKeepsTheContract(PortContract):
    atol = 1e-4

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(fused=True))


class TestBranchesAsRowsKeepTheContract(PortContract):
    """Where the graph takes no mask of ours, every branch is a row."""

    atol = 1e-4

    @pytest.fixture
    def model_factory(
        self, models: Callable[..., Path], fed_by_row: None
    ) -> Callable[[], LanguageModel]:
        return lambda: open_resident(models())


class TestFusedRowsKeepTheContract(PortContract):
    """Fused attention takes no padding: each branch is a batch of its own."""

    atol = 1e-4

    @pytest.fixture
    def model_factory(
        self, models: Callable[..., Path], fed_by_row: None
    ) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(fused=True))


class TestPagedRowsKeepTheContract(PortContract):
    atol = 1e-4

    @pytest.fixture
    def model_factory(
        self, models: Callable[..., Path], fed_by_row: None
    ) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(tied=True))


class TestFourBitsKeepTheContract(PortContract):
    atol = 1e-2

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_resident(models(bits=4, fused=True))


class TestPagedFourBitsKeepTheContract(PortContract):
    atol = 1e-2

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(bits=4, fused=True, layers=4), share=0.3)


class TestTokensThatInfluenceEachOtherKeepTheContract(PortContract):
    """int8 with a scale over the batch: each token is computed by itself, so nothing changes."""

    atol = 1e-4

    @pytest.fixture
    def model_factory(self, models: Callable[..., Path]) -> Callable[[], LanguageModel]:
        return lambda: open_paged(models(bits=8))
