"""GGUF targets give hidden states: the same however a token is computed, llama.cpp's own numbers,
within the plan, and without a trace in the logits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import ModelError
from edgespec.ports import LanguageModel
from edgespec.tree import ROOT, TokenTree
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.features import FeatureTap
from edgespec_runtimes.gguf.llama import abi
from edgespec_runtimes.gguf.llama.bindings import lib
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.prepared import PreparedGguf
from features_contract import (
    TOKENS,
    FeaturesContract,
    Received,
    check_another_text_gives_none,
    logits_of_a_tree,
)
from gguf_files import tiny_llama
from head_cases import head_request
from paging_contract import load_paged
from port_calls import evaluate, prefill

LAYERS = (1, 2, 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(layers=4).write(tmp_path_factory.mktemp("features") / "target.gguf")


def prepare(path: Path, n_slots: int = 1) -> PreparedGguf:
    request = head_request(path, "target", batch_size=8, n_slots=n_slots)
    return runtime.prepare(request)


def open_resident(path: Path, n_slots: int = 1, gives: bool = True) -> GgufModel:
    prepared = prepare(path, n_slots)
    try:
        if gives:
            prepared.offer_features(LAYERS, 64)
        model = prepared.load(None)
        assert isinstance(model, GgufModel)
        return model
    finally:
        prepared.close()


def open_paged(path: Path) -> LanguageModel:
    prepared = prepare(path)
    prepared.offer_features(LAYERS, 64)
    return load_paged(prepared, 0.5)


class TestAResidentTargetGivesFeatures(FeaturesContract):
    layers = LAYERS
    atol = 1e-3

    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: open_resident(path)


class TestAPagedTargetGivesFeatures(FeaturesContract):
    layers = LAYERS

    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: open_paged(path)


class TestTheFirstOfSeveralTextsGivesFeatures(FeaturesContract):
    layers = LAYERS
    atol = 1e-3

    @pytest.fixture
    def model_factory(self, path: Path) -> Callable[[], LanguageModel]:
        return lambda: open_resident(path, n_slots=2)


def test_they_are_what_llama_cpp_itself_gives(path: Path) -> None:
    """Its staging functions, which only some graphs serve, give the same bits."""
    library = ctypes.CDLL(lib._lib._name)
    ask = library._Z30llama_set_embeddings_layer_inpP13llama_contextjb
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool], None
    get = library._Z30llama_get_embeddings_layer_inpP13llama_contextj
    get.argtypes, get.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)
    received = Received()
    with closing(open_resident(path)) as model:
        model.give_features(LAYERS, received)
        prefill(model, TOKENS[:8])
    with closing(open_resident(path, gives=False)) as model:
        for layer in LAYERS:
            ask(model._context, layer, True)
        prefill(model, TOKENS[:8])
        for n, layer in enumerate(LAYERS):
            own = np.ctypeslib.as_array(get(model._context, layer), (8, 64))
            assert np.array_equal(received.rows[:, n], own), layer


def test_asking_changes_no_logit(path: Path) -> None:
    rows = []
    for gives in (True, False):
        with closing(open_resident(path, gives=gives)) as model:
            rows.append(logits_of_a_tree(model, LAYERS if gives else ()))
    assert np.array_equal(*rows)


def test_names_are_read_from_where_layers_ended_in_earlier_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[bytes] = []

    def name_of(node: int) -> bytes:
        names.append(ctypes.string_at(node + abi.NAME_OFFSET))
        return names[-1]

    monkeypatch.setattr(abi, "name_of", name_of)
    with closing(open_resident(path)) as model:
        model.give_features(LAYERS, Received())
        prefill(model, TOKENS[:4])
        names.clear()
        for _ in range(3):
            evaluate(model, TokenTree(TOKENS[4]), [ROOT])
    assert set(names[-12:]) == {b"l_out-0", b"l_out-1", b"l_out-2"}


def test_a_node_that_comes_later_than_in_earlier_passes_is_found(path: Path) -> None:
    tap = FeatureTap(LAYERS, 64, 8, None, 4)
    for places in ([9, 19, 29], [11, 20, 40], [9, 22, 30]):
        pass_over(tap, places)
        assert tap._n_filled == [1, 1, 1], places


def pass_over(tap: FeatureTap, places: list[int]) -> None:
    """Show `tap` a pass whose layers end at these places."""
    rows = np.zeros((1, 64), np.float32)
    tap.begin_pass(1)
    for place in range(60):
        node = abi.GgmlTensor()
        node.name = b"l_out-%d" % places.index(place) if place in places else b"node"
        node.ne[:2], node.nb[1], node.data = (64, 1), 256, rows.ctypes.data
        address = ctypes.addressof(node)
        if tap._on_node(address, True, None):
            tap._n_filled[places.index(place)] += 1  # as if copied: there is no backend
    tap.end_pass()


def test_another_text_gives_none(path: Path) -> None:
    with closing(open_resident(path, n_slots=2)) as model:
        check_another_text_gives_none(model, LAYERS)


def test_the_plan_has_a_row_for_them_only_if_they_are_asked_for(path: Path) -> None:
    with closing(prepare(path)) as prepared:
        assert not any("features" in row.what for row in prepared.needs().common_rows())
    with closing(prepare(path)) as prepared:
        prepared.offer_features(LAYERS, 64)
        rows = [row for row in prepared.needs().common_rows() if "features" in row.what]
        assert [row.nbytes for row in rows] == [4 * 3 * 64 * (9 + 9)]


@pytest.mark.parametrize(
    ("layers", "n_values", "said"),
    [((1, 2, 4), 64, "of 1 to 3"), ((0, 1, 2), 64, "of 1 to 3"), (LAYERS, 96, "read")],
)
def test_what_the_model_does_not_have_is_refused(
    path: Path, layers: tuple[int, ...], n_values: int, said: str
) -> None:
    with closing(prepare(path)) as prepared, pytest.raises(ModelError, match=said):
        prepared.offer_features(layers, n_values)
