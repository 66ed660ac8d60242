"""The blocks of ONNX models leave the process and come back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.ports import LanguageModel
from edgespec_runtimes.onnx import cache
from onnx_models import made_in, open_paged, open_resident
from paging_contract import one_by_one
from state_contract import MORE, StateContract, blocks_of, read_blocks


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_in(tmp_path_factory.mktemp("models"), layers=3)()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BLOCK_TOKENS", 8)


class TestResidentOnnx(StateContract):
    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: open_resident(path)


@pytest.mark.slow
def test_what_a_paged_model_kept_serves_one_in_memory(path: Path) -> None:
    """onnxruntime fuses what it has in one session, which rounds in its own way."""
    with closing(open_paged(path)) as paged:
        kept, expected = blocks_of(paged), one_by_one(paged, MORE)
    with closing(open_resident(path)) as model:
        read_blocks(model, kept)
        assert np.allclose(one_by_one(model, MORE), expected, rtol=0, atol=1e-4)
