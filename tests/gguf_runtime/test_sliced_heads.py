"""An output head, and at small budgets every large matrix, is read and multiplied in slices: the
logits are those of the whole matrix, bit for bit, and no part of memory holds it whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.model import GgufModel
from edgespec_runtimes.gguf.weights import segments
from gguf_files import tiny_llama
from one_tree import line
from paging_contract import PagingContract, load_paged, one_by_one
from port_calls import evaluate, prefill
from reference import LlamaCpp
from zoo_files import LARGER_VOCABULARIES, write_model
from zoo_species import EXPERTS_ONLY, Species

KINDS = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "F16", "BF16", "F32")
TOKENS = [5, 91, 17, 44, 208, 91, 33, 260]
SLICE_BYTES = 32 << 10
ARCHITECTURES = ("gemma2", "granite", "cohere2", "command-r", "phi2", "grok", "qwen3moe", "gemma4")
"""Most of whose graphs go on after the head, with a cap, a scale or a bias; the others have experts
or tables beside it."""


@dataclass(frozen=True)
class Head:
    kind: str
    tied: bool
    n_vocab: int
    """A number that 64 does not divide leaves rows over, for which ggml may have other kernels."""

    def write(self, folder: Path) -> Path:
        model = tiny_llama(
            embedding=256, layers=3, tied=self.tied, head_kind=self.kind, n_vocab=self.n_vocab
        )
        return model.write(folder / "model.gguf")


def opened(path: Path, share: float = 0.0, n_threads: int = 1) -> GgufModel:
    request = ModelRequest(path, "target", 128, 40, 4, n_threads, batch_size=32)
    return load_paged(runtime.prepare(request), share)


def slices_of(model: GgufModel) -> list[str]:
    """Their names, each of which begins with that of the matrix."""
    return [group.segment.name for group in model._weights._arranged.groups if group.rows]


def logits_of(model: GgufModel, n_rows: int) -> np.ndarray:
    """After each of `n_rows` tokens that a pass computes together."""
    model.truncate(0)
    prefill(model, TOKENS)
    return evaluate(model, *line([7, *(3 * token for token in range(1, n_rows))]))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_SLICE_BYTES", SLICE_BYTES)


def slices_with_the_logits_of(
    whole: GgufModel, path: Path, sizes: Sequence[int], request: pytest.FixtureRequest
) -> list[str]:
    """The slices of a model, after its logits were compared; closes the whole one."""
    expected = {n_rows: logits_of(whole, n_rows) for n_rows in sizes}
    whole.close()
    request.getfixturevalue("small_slices")
    with closing(opened(path)) as sliced:
        for n_rows, logits in expected.items():
            assert np.array_equal(logits_of(sliced, n_rows), logits), n_rows
        return slices_of(sliced)


@pytest.mark.slow
@pytest.mark.parametrize("n_vocab", [512, 601])
@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_slices_have_the_logits_of_the_whole_head(
    kind: str, tied: bool, n_vocab: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = Head(kind, tied, n_vocab).write(tmp_path)
    whole = opened(path)
    assert not slices_of(whole)
    assert len(slices_with_the_logits_of(whole, path, (1, 2, 8, 33), request)) > 2


@pytest.mark.costly
@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("share", [0.0, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_it_does_not_matter_which_slices_stay_in_memory(
    kind: str, share: float, tmp_path: Path
) -> None:
    path = Head(kind, False, 601 if kind == "Q8_0" else 512).write(tmp_path)
    every = opened(path, 1.5)
    assert not slices_of(every), "a head that stays whole is not sliced"
    some = opened(path, share)
    assert slices_of(some)
    assert np.array_equal(logits_of(some, 5), logits_of(every, 5))
    some.close()
    every.close()


@pytest.mark.slow
@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in ("gemma2", "qwen3moe") else pytest.mark.slow)
        for name in ARCHITECTURES
    ],
)
def test_what_a_graph_does_with_the_logits_sees_all_of_them(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LARGER_VOCABULARIES, architecture, 2048)
    path = write_model(tmp_path / "m.gguf", Species(architecture, architecture in EXPERTS_ONLY))
    monkeypatch.setattr(loading, "SMALL_MODEL_BYTES", 0)
    model = opened(path, n_threads=2)
    assert len(slices_of(model)) > 2
    with LlamaCpp(path, n_ctx=128) as whole:
        whole.start()
        expected = np.stack([whole.decode([token]) for token in TOKENS])
    assert np.array_equal(one_by_one(model, TOKENS), expected)
    model.close()


@pytest.mark.usefixtures("small_slices")
def test_a_pass_reads_every_slice_once(tmp_path: Path) -> None:
    path = Head("Q8_0", True, 512).write(tmp_path)
    model = opened(path)
    one_by_one(model, TOKENS[:1])
    before = model.paging().bytes_read
    one_by_one(model, TOKENS)
    groups, ring = model._weights._arranged.groups, model._weights._wanted.ring_bytes
    assert len(slices_of(model)) > 2
    file_bytes = path.stat().st_size  # the last block of the file is not whole
    runs = [run for group in groups for run in group.segment.runs]
    pass_bytes = sum(min(run.nbytes, file_bytes - run.start) for run in runs)
    read = model.paging().bytes_read - before
    model.close()
    assert abs(read - len(TOKENS) * pass_bytes) <= ring


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K", "F16"])
def test_slices_of_layers_have_the_logits_of_whole_layers(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "model.gguf"
    tiny_llama(embedding=256, head_size=64, ffn=512, layers=2, kind=kind).write(path)
    names = slices_with_the_logits_of(opened(path, 1.5), path, (1, 9), request)
    assert {name.split()[0] for name in names} >= {"blk.0.ffn_up.weight", "blk.1.attn_q.weight"}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.slow
class TestSlicesKeepThePagingContract(PagingContract):
    @pytest.fixture
    def paged(self, tmp_path: Path) -> Iterator[GgufModel]:
        with closing(opened(Head("Q8_0", False, 512).write(tmp_path), 0.3)) as model:
            assert slices_of(model)
            yield model


@pytest.mark.slow
def test_the_smallest_budget_of_a_model_that_is_mostly_head_is_below_half_of_its_size(
    tmp_path: Path,
) -> None:
    """Its head had a slot of its own: the smallest budget was larger than the file."""
    path = tmp_path / "mostly-head.gguf"
    tiny_llama(embedding=8192, n_vocab=32_768, ffn=512, hollow=True).write_hollow(path)
    command = [sys.executable, "-m", "edgespec", "plan", "-m", str(path), "--json", "-c", "128"]
    done = subprocess.run([*command, "--memory-budget", "4GiB"], capture_output=True, check=True)
    assert json.loads(done.stdout)["smallest_bytes"] < 0.5 * path.stat().st_size
