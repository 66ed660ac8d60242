"""The state of ONNX models leaves the process and comes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.ports import LanguageModel
from edgespec.ports.state import KeepsState
from edgespec_runtimes.onnx import model as onnx_model
from onnx_models import made_in, open_paged, open_resident
from paging_contract import one_by_one
from port_calls import prefill
from state_contract import N_KEPT, Pieces, StateContract, pieces_of


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_in(tmp_path_factory.mktemp("models"), layers=3)()


class TestResidentOnnx(StateContract):
    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: open_resident(path)


class TestPagedOnnxInManyPieces(StateContract):
    @pytest.fixture
    def model_factory(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], LanguageModel]:
        monkeypatch.setattr(onnx_model, "PIECE_BYTES", 1000)
        return lambda: open_paged(path)


@pytest.mark.slow
def test_what_a_paged_model_kept_serves_one_in_memory(path: Path) -> None:
    """onnxruntime fuses what it has in one session, which rounds in its own way."""
    text, more = list(range(30, 30 + N_KEPT)), [1, 2, 3, 4]
    with closing(open_paged(path)) as paged:
        prefill(paged, text)
        kept, expected = pieces_of(paged), one_by_one(paged, more)
    with closing(open_resident(path)) as model:
        assert isinstance(model, KeepsState)
        model.read_state(N_KEPT, Pieces(kept))
        assert np.allclose(one_by_one(model, more), expected, rtol=0, atol=1e-4)
