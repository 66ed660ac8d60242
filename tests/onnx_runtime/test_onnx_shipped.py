"""The shipped ONNX pair keeps the port's contract."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.ports import LanguageModel, PassPart
from one_tree import OneTree
from onnx_models import open_paged, open_resident
from port_calls import prefill
from port_contract import PortContract
from slots_contract import SlotsContract

MODELS = Path(__file__).parents[2] / "models"
TARGET, DRAFT = MODELS / "edgespec-target-onnx-fp16", MODELS / "edgespec-draft-onnx-fp16"
SIZES = {"ctx_size": 256, "max_nodes": 17, "max_branches": 8}
HALF_STEPS = 0.02
"""Logits of half precision, between 8 and 16, are 0.0078 apart; onnxruntime's own differ by one
such step when it is fed several tokens at once."""


@pytest.mark.slow
class TestSlotsOfAPagedExport(SlotsContract):
    atol = atol_beside = HALF_STEPS
    opened = partial(open_paged, TARGET, n_slots=3, **SIZES)


@pytest.mark.slow
def test_texts_in_one_pass_round_as_each_does_alone() -> None:
    """Rows of several texts are batches of their own; the weights are read once for all."""
    with closing(open_paged(TARGET, share=0.0, n_slots=3, **SIZES)) as model:
        prompts = [[300 + 17 * n + i for i in range(20 + n)] for n in range(3)]
        trees = [OneTree(prompt[0]) for prompt in prompts]
        for tree in trees:
            for n in range(4):
                tree.add(n // 2, 400 + n, 0.5)
        for text, prompt in enumerate(prompts):
            prefill(model, prompt, slot=text)
        parts = [PassPart(text, tree, range(5)) for text, tree in enumerate(trees)]
        alone = []
        for part in parts:
            alone += [rows.copy() for rows in model.evaluate([part])]
            model.truncate(len(prompts[part.slot]), slot=part.slot)
        of_one = model.last_report.bytes_read
        together = model.evaluate(parts)
        assert all(map(np.array_equal, together, alone))
        assert 0 < model.last_report.bytes_read <= 1.5 * of_one


class TestResidentExportKeepsTheContract(PortContract):
    atol = HALF_STEPS

    @pytest.fixture(
        params=[pytest.param(TARGET, marks=pytest.mark.slow), DRAFT], ids=["target", "draft"]
    )
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        return lambda: open_resident(request.param, **SIZES)


@pytest.mark.slow
class TestPagedExportKeepsTheContract(PortContract):
    atol = HALF_STEPS
    opened = partial(open_paged, TARGET, share=0.3, **SIZES)
