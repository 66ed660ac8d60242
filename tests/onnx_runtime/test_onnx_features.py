"""ONNX targets give hidden states: the same however a token is computed, those that other runtimes
give of the same weights, within the plan, and without a trace in the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.ports import LanguageModel
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.prepared import PreparedOnnx
from features_contract import (
    TOKENS,
    FeaturesContract,
    Received,
    logits_of_a_tree,
)
from genai_models import GEMMA, LLAMA, QWEN, without_rings
from onnx_files import write_llama
from onnx_models import request
from onnx_reference import WholeModel
from paging_contract import load_paged
from port_calls import prefill

LAYERS = (1, 2, 3)
WIDTH = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("features"), layers=4)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("fused"), layers=4, fused=True)


def prepared(path: Path, layers: tuple[int, ...] = LAYERS, **options: object) -> PreparedOnnx:
    found = runtime.prepare(request(path, **{"batch_size": 8, **options}))
    if layers:
        found.offer_features(layers, found._deployed.fitted.cut.hidden_size)
    return found


def opened(path: Path, is_paged: bool = False, **options: object) -> OnnxModel:
    made = prepared(path, **options)  # type: ignore[arg-type]
    if is_paged:
        model = load_paged(made, 0.5)
    else:
        with closing(made):
            model = made.load(None)
    assert isinstance(model, OnnxModel)
    return model


class ContractOfAnExport(FeaturesContract):
    atol = 1e-4
    is_paged = False
    n_slots = 1

    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: opened(path, self.is_paged, layers=self.layers, n_slots=self.n_slots)


class TestAResidentExportGivesFeatures(ContractOfAnExport):
    layers = LAYERS


class TestTheFirstOfSeveralTextsOfAPagedExportGivesFeatures(ContractOfAnExport):
    layers = LAYERS
    is_paged = True
    n_slots = 2


@pytest.mark.slow
class TestAPagedFusedGraphGivesFeatures(ContractOfAnExport):
    layers = LAYERS
    is_paged = True

    @pytest.fixture
    def path(self, fused: Path) -> Path:
        return fused


class TestAResidentGenaiModelOfFourBitsGivesFeatures(ContractOfAnExport):
    layers = LAYERS
    atol = 0.1

    @pytest.fixture
    def path(self) -> Path:
        return QWEN


def features_of(model: OnnxModel, layers: tuple[int, ...], tokens: Sequence[int]) -> np.ndarray:
    received = Received()
    with closing(model):
        model.give_features(layers, received)
        prefill(model, tokens)
    return received.rows


@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize("folder", [LLAMA, GEMMA], ids=lambda folder: folder.name)
@pytest.mark.costly
def test_they_are_the_sums_that_enter_a_layer(folder: Path, is_paged: bool, tmp_path: Path) -> None:
    """Features of the graph as it was exported, computed by onnxruntime alone."""
    path = without_rings(folder, tmp_path)
    graph = onnx.load(path, load_external_data=False)
    names = [f"/model/layers.{layer}/input_layernorm/output_3" for layer in (1, 2)]
    for name in names:
        graph.graph.output.add(name=name)
    onnx.save(graph, path)
    whole = WholeModel(path)
    rows = features_of(opened(folder, is_paged, layers=(1, 2)), (1, 2), TOKENS)
    whole.decode_batch(TOKENS)
    expected = np.stack([whole.results[name][0] for name in names], axis=1)
    assert np.allclose(rows, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_paged_int8_layers_compute_them_to_the_last_bit_as_in_memory(tmp_path: Path) -> None:
    """onnxruntime moves a query's factor into its product where it knows the shapes, which pieces
    did not declare; a last bit grows where activations are rounded to eight bits."""
    path = write_llama(tmp_path, layers=4, heads=8, bits=8)
    whole, paged = (
        features_of(opened(path, is_paged, layers=LAYERS), LAYERS, TOKENS)
        for is_paged in (False, True)
    )
    assert np.array_equal(whole, paged)


@pytest.mark.costly
@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize(
    "kind",
    [
        {"fused": True},
        {"bits": 4},
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ({}, {"dtype": "float16"})),
    ],
)
def test_asking_changes_no_bit_of_a_logit(
    kind: dict[str, object], is_paged: bool, tmp_path: Path
) -> None:
    path = write_llama(tmp_path, layers=4, **kind)  # type: ignore[arg-type]
    found = []
    for layers in (LAYERS, ()):
        with closing(opened(path, is_paged, layers=layers)) as model:
            found.append(logits_of_a_tree(model, layers))
    assert np.array_equal(*found)


def test_the_plan_has_a_row_for_them_only_if_they_are_asked_for(path: Path) -> None:
    found = []
    for layers in (LAYERS, ()):
        with closing(prepared(path, layers)) as made:
            rows = made.needs().common_rows()
            found.append([row.nbytes for row in rows if "features" in row.what])
    (nbytes,), none = found
    a_pass, a_batch, a_tree = 8, 17, 17
    assert nbytes == 4 * 3 * WIDTH * (a_pass + 2 * a_batch + 2 * a_tree)
    assert none == []
