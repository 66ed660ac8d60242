"""The ONNX runtime keeps the port's contract: a tree by a mask or by rows, resident and paged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")


from edgespec.ports import LanguageModel
from onnx_files import write_llama
from onnx_models import open_paged, open_resident
from port_contract import PortContract

RUNTIME = sys.modules["edgespec_runtimes.onnx.runtime"]
"""The module: its package calls what it makes by the same name."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("models")

    def made(**kind: object) -> Path:
        path = folder / ("_".join(f"{key}{value}" for key, value in kind.items()) or "plain")
        if not path.exists():
            write_llama(path, **{"layers": 2, **kind})  # type: ignore[arg-type]
        return path

    return made


def fed_by_row(*_: object) -> tuple[()]:
    """Stands for a graph that takes no mask of ours."""
    return ()


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
        self, models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], LanguageModel]:
        monkeypatch.setattr(RUNTIME, "find_masks", fed_by_row)
        return lambda: open_resident(models())


class TestFusedRowsKeepTheContract(PortContract):
    """Fused attention takes no padding: each branch is a batch of its own."""

    atol = 1e-4

    @pytest.fixture
    def model_factory(
        self, models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], LanguageModel]:
        monkeypatch.setattr(RUNTIME, "find_masks", fed_by_row)
        return lambda: open_paged(models(fused=True))


class TestPagedRowsKeepTheContract(PortContract):
    atol = 1e-4

    @pytest.fixture
    def model_factory(
        self, models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], LanguageModel]:
        monkeypatch.setattr(RUNTIME, "find_masks", fed_by_row)
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
