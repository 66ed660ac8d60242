"""The ONNX runtime keeps the port's contract: a tree by a mask or by rows, resident and paged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")


from onnx_models import ContractOfKind, made_in, open_paged, open_resident
from slots_contract import SlotsContract

FITTING = sys.modules["edgespec_runtimes.onnx.prepare.fitting"]
"""The module: its package calls what it makes by the same name."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return made_in(tmp_path_factory.mktemp("models"), layers=2)


@pytest.fixture
def fed_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are taken for such that take no mask of ours."""
    monkeypatch.setattr(FITTING, "find_masks", lambda *_: ())


class TestResidentKeepsTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_resident)


class TestSlotsOfAPagedModel(ContractOfKind, SlotsContract):
    atol = atol_beside = 1e-4
    opened = partial(open_paged, n_slots=3, ctx_size=256)


@pytest.mark.slow
class TestHalfPrecisionWithNothingPinnedKeepsTheContract(ContractOfKind):
    atol = 0.02
    opened = partial(open_paged, share=0.0)
    kind: ClassVar = {"dtype": "float16"}


@pytest.mark.slow
class TestWeightsInTheGraphKeepTheContract(ContractOfKind):
    atol = 1e-3
    opened = staticmethod(open_paged)
    kind: ClassVar = {"external": False, "tied": True}


@pytest.mark.slow
class TestFusedAttentionKeepsTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_paged)
    kind: ClassVar = {"fused": True}


@pytest.mark.usefixtures("fed_by_row")
class TestBranchesAsRowsKeepTheContract(ContractOfKind):
    """Every branch is a row in a model whose graph takes no mask of ours."""

    atol = 1e-4
    opened = staticmethod(open_resident)


@pytest.mark.slow
@pytest.mark.usefixtures("fed_by_row")
class TestFusedRowsKeepTheContract(ContractOfKind):
    """Fused attention takes no padding: each branch is a batch of its own."""

    atol = 1e-4
    opened = staticmethod(open_paged)
    kind: ClassVar = {"fused": True}


@pytest.mark.slow
@pytest.mark.usefixtures("fed_by_row")
class TestPagedRowsKeepTheContract(ContractOfKind):
    atol = 1e-4
    opened = staticmethod(open_paged)
    kind: ClassVar = {"tied": True}


@pytest.mark.slow
class TestFourBitsKeepTheContract(ContractOfKind):
    atol = 1e-2
    opened = staticmethod(open_resident)
    kind: ClassVar = {"bits": 4, "fused": True}


@pytest.mark.slow
class TestPagedFourBitsKeepTheContract(ContractOfKind):
    atol = 1e-2
    opened = partial(open_paged, share=0.3)
    kind: ClassVar = {"bits": 4, "fused": True, "layers": 3}


@pytest.mark.slow
class TestTokensThatInfluenceEachOtherKeepTheContract(ContractOfKind):
    """int8 with a scale over the batch: each token is computed by itself, so nothing changes."""

    atol = 1e-4
    opened = staticmethod(open_paged)
    kind: ClassVar = {"bits": 8}
