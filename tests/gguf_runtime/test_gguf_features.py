"""GGUF targets give hidden states: the same however a token is computed, llama.cpp's own numbers,
within the plan, and without a trace in the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from edgespec.ports import LanguageModel
from edgespec_runtimes.gguf import measuring, runtime
from edgespec_runtimes.gguf.file.architectures import Trait, names_with
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.prepared import PreparedGguf
from features_contract import TOKENS, FeaturesContract, Received, logits_of_a_tree
from gguf_files import STRING, Tensor, tiny_llama
from head_cases import head_request
from paging_contract import load_either
from port_calls import prefill
from zoo_files import write_model
from zoo_species import all_species

LAYERS = (1, 2, 3)
WITHOUT_NODES = ("nemotron_h", "nemotron_h_moe")
"""Architectures whose graphs give inputs and do not name the nodes."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(layers=4).write(tmp_path_factory.mktemp("features") / "target.gguf")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """README's model has this architecture, whose graph gives no inputs."""
    model = tiny_llama(layers=4, heads=2, kv_heads=1)
    model.metadata = {
        key.replace("llama.", "qwen2."): value for key, value in model.metadata.items()
    }
    model.metadata["general.architecture"] = (STRING, "qwen2")
    for layer in range(4):
        for name, width in (("q", 64), ("k", 32), ("v", 32)):
            bias = Tensor(f"blk.{layer}.attn_{name}.bias", (width,), 0, bytes(4 * width))
            model.tensors.append(bias)
    return model.write(tmp_path_factory.mktemp("features") / "qwen2.gguf")


def prepare(path: Path, n_slots: int = 1) -> PreparedGguf:
    request = head_request(path, "target", batch_size=8, n_slots=n_slots)
    return runtime.prepare(request)


@contextmanager
def copied() -> Iterator[None]:
    """In the block, graphs count as giving no features themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "gives_inputs", lambda architecture: False)
        yield


def open_model(
    path: Path,
    n_slots: int = 1,
    is_paged: bool = False,
    gives: bool = True,
    layers: tuple[int, ...] = LAYERS,
    n_values: int = 64,
) -> GgufModel:
    prepared = prepare(path, n_slots)
    if gives:
        prepared.offer_features(layers, n_values)
    return load_either(prepared, is_paged)


class TestAResidentTargetGivesFeatures(FeaturesContract):
    """The only text or the first of several, from the graph or from the nodes of a Qwen 2."""

    layers = LAYERS
    atol = 1e-3

    @pytest.fixture(params=[("path", 1), ("path", 2), ("qwen2", 1)], ids=str)
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        path = request.getfixturevalue(request.param[0])
        return lambda: open_model(path, n_slots=request.param[1])


class TestAPagedTargetGivesFeatures(FeaturesContract):
    layers = LAYERS

    @pytest.fixture(params=["path", pytest.param("qwen2", marks=pytest.mark.slow)])
    def model_factory(self, request: pytest.FixtureRequest) -> Callable[[], LanguageModel]:
        path = request.getfixturevalue(request.param)
        return lambda: open_model(path, is_paged=True)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in ("gpt-oss", "llama") else pytest.mark.slow)
        for name in names_with(Trait.SHOWS_INPUTS)
    ],
)
def test_nodes_have_the_same_bits_as_what_the_graph_gives(
    architecture: str, tmp_path: Path
) -> None:
    species = next(one for one in all_species() if one.architecture == architecture)
    path, found = write_model(tmp_path / "target.gguf", species), []
    header = read_header(path)
    n_values = header.integer(header.key("embedding_length"), 0)
    for how in (nullcontext(), *([copied()] if architecture not in WITHOUT_NODES else [])):
        received = Received()
        with how, closing(open_model(path, layers=(1,), n_values=n_values)) as model:
            model.give_features((1,), received)
            prefill(model, TOKENS[:8])
        found.append(received.rows)
    assert np.array_equal(found[0], found[-1])
    assert found[0].any(axis=-1).all()


@pytest.mark.parametrize("how", [nullcontext, copied])
def test_asking_changes_no_logit(
    path: Path, how: Callable[[], AbstractContextManager[None]]
) -> None:
    rows = []
    for gives in (True, False):
        with how(), closing(open_model(path, gives=gives)) as model:
            rows.append(logits_of_a_tree(model, LAYERS if gives else ()))
    assert np.array_equal(*rows)


def test_a_resident_model_whose_graph_gives_them_has_no_callback(path: Path) -> None:
    """A callback is asked about every node, which takes longer than all of a small model's
    overhead."""
    with closing(open_model(path)) as model:
        assert model._tap is not None and model._tap.callback is None


def test_the_plan_has_a_row_for_them_only_if_they_are_asked_for(path: Path) -> None:
    with closing(prepare(path)) as prepared:
        assert not any("features" in row.what for row in prepared.needs().common_rows())
    with closing(prepare(path)) as prepared:
        prepared.offer_features(LAYERS, 64)
        rows = [row for row in prepared.needs().common_rows() if "features" in row.what]
        assert [row.nbytes for row in rows] == [4 * 3 * 64 * (2 * 64 + 9)]
