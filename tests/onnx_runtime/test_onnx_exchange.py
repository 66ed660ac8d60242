"""Packed layers that are streamed are exchanged in a session that stays, and compute the same."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

from edgespec.files.unfinished import SUFFIX
from edgespec_runtimes.onnx import runtime, trials
from edgespec_runtimes.onnx.graph.accuracy import set_accuracy
from edgespec_runtimes.onnx.model import OnnxModel
from edgespec_runtimes.onnx.ort.sessions import OrtSession
from edgespec_runtimes.onnx.prepare import measuring
from edgespec_runtimes.onnx.weights import artifacts, exchange
from edgespec_runtimes.onnx.weights.exchanging import ExchangingWeights
from edgespec_runtimes.onnx.weights.packed import PackedWeights, with_stored
from onnx_files import edit_graph, write_llama
from onnx_models import open_paged, request
from paging_contract import PagingContract, load_paged, one_by_one, with_room
from port_contract import TEXT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells mappings")

LEVELS = {"floats": 1, "eight bits": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A decoder with 4-bit layers for each accuracy level."""
    made = {}
    for name, level in LEVELS.items():
        folder = tmp_path_factory.mktemp("models") / str(level)
        path = write_llama(folder, bits=4, layers=6, fused=True)
        edit_graph(path, lambda model, level=level: set_accuracy(model.graph, level))
        made[name] = folder
    return made


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of models of any size, in this process."""
    monkeypatch.setattr(measuring, "MEASURED_BYTES", 0)

    def tried(graphs: list[bytes], n_pairs: int, source: Any, n_threads: int) -> list[Any]:
        folder, _ = source.references()
        artifacts.folder().mkdir(parents=True, exist_ok=True)
        single, paired = graphs[: len(graphs) - 2 * n_pairs], graphs[len(graphs) - 2 * n_pairs :]
        pairs = zip(paired[::2], paired[1::2], strict=True)
        sizes: list[Any] = [[1 << 20, 1 << 20, 1 << 20] for _ in single]
        return sizes + [
            trials.measured_exchange(*pair, n_threads, folder, artifacts.folder()) for pair in pairs
        ]

    monkeypatch.setattr(measuring, "_tried", tried)


@pytest.fixture
def paged(folders: dict[str, Path]) -> Iterator[OnnxModel]:
    model = open_paged(folders["floats"])
    assert isinstance(model._weights, ExchangingWeights)
    yield model
    model.close()


@pytest.mark.slow
class TestExchangedLayersKeepThePagingContract(PagingContract):
    """The paging contract on 4-bit layers whose constants are exchanged."""


def logits(folder: Path, kind: type, share: float = 0.0) -> np.ndarray:
    """Logits of a paged model with weights of a kind."""
    with closing(open_paged(folder, share)) as model:
        assert type(model._weights) is kind
        return one_by_one(model, model.vocabulary.encode(TEXT)[:6])


@pytest.mark.costly
@pytest.mark.parametrize("level", LEVELS)
def test_exchanged_layers_compute_bit_by_bit_what_sessions_of_their_own_do(
    level: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged = logits(folders[level], ExchangingWeights)
    monkeypatch.setattr(measuring, "MEASURED_BYTES", 1 << 40)
    assert np.array_equal(logits(folders[level], PackedWeights), exchanged)


def test_a_pass_creates_no_session(paged: OnnxModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a session was created")

    monkeypatch.setattr(OrtSession, "__init__", refuse)
    assert paged.paging().streamed_bytes
    one_by_one(paged, [1, 2])


def test_what_no_result_depends_on_is_not_read(folders: dict[str, Path]) -> None:
    """With activations of eight bits, scales are in the packed form, and stay beside it unused."""
    n_constants = {}
    for name, folder in folders.items():
        with closing(open_paged(folder, 0.0)) as model:
            weights: Any = model._weights
            (layout,) = weights._layouts.values()
            n_constants[name] = Counter(constant.form for constant in layout.constants)
    stored, packed = -1, 0
    assert n_constants["eight bits"][packed] == n_constants["floats"][packed] > 0
    assert n_constants["eight bits"][stored] < n_constants["floats"][stored]


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache_folder")
def test_layers_are_packed_once_per_file(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(folders["floats"], ExchangingWeights)
    (records,) = artifacts.folder().glob("*.packed")
    before = records.stat().st_ino
    assert np.array_equal(logits(folders["floats"], ExchangingWeights), first)
    assert records.stat().st_ino == before
    records.write_bytes(bytes(records.stat().st_size))
    assert np.array_equal(logits(folders["floats"], ExchangingWeights), first)
    monkeypatch.setattr("edgespec_runtimes.onnx.prepared.made_by", lambda _: "another onnxruntime")
    logits(folders["floats"], ExchangingWeights)
    (renewed,) = artifacts.folder().glob("*.packed")
    assert renewed != records
    assert not [path for path in artifacts.folder().iterdir() if path.name.endswith(SUFFIX)]


def test_what_is_pinned_may_change_between_passes(paged: OnnxModel) -> None:
    tokens = paged.vocabulary.encode(TEXT)[:4]
    expected = one_by_one(paged, tokens)
    weights: Any = paged._weights
    for share in (1.0, 0.0, 0.6):
        plan = with_room(paged, share)
        applied = weights.divide(plan)
        paged.truncate(0)
        while not applied.is_set():
            weights.settle()
        assert np.array_equal(one_by_one(paged, tokens), expected)
        assert bool(weights._pinned_sessions.keys() & {g.piece for g in weights.groups}) == bool(
            plan.pinned
        )


@pytest.mark.usefixtures("own_cache_folder")
def test_loading_that_is_cancelled_leaves_no_copy(folders: dict[str, Path]) -> None:
    stopped = threading.Event()

    def stop(doing: str, done: float) -> None:
        stopped.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_paged(runtime.prepare(request(folders["floats"])), 0.0, stop)
    assert stopped.is_set()
    assert not [path for path in artifacts.folder().iterdir() if path.suffix in {".packed", SUFFIX}]


def test_saved_constants_lie_where_every_version_maps_them(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """onnxruntime 1.32 copied half of level 4's packed matrices, and layers were packed anew in
    each pass."""
    with closing(runtime.prepare(request(folders["eight bits"]))) as prepared:
        cut, source = prepared._deployed.fitted.cut, prepared._source
        pair = next(iter(measuring._pairs(cut).values()))
        saved = exchange.save(*with_stored(cut, pair[0], source), 1, tmp_path)
    assert len(saved.offsets) > 1
    assert not {offset % 256 for offset in saved.offsets.values()} - {0}
