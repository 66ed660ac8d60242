"""Packing of weights in memory for the CPU, and notes where they are not packed."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from edgespec.models.embedded import embedded_pair
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.entry import GgufRuntime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.llama import loading, log
from edgespec_runtimes.gguf.llama.abort import AbortFlag
from edgespec_runtimes.gguf.weights.packing import packed_matrices
from reference import quantise

PAIR = embedded_pair()


def request(path: Path, owner: str, budget_bytes: int | None = None) -> ModelRequest:
    return ModelRequest(path, owner, 64, 4, 2, 1, budget_bytes=budget_bytes)


@pytest.mark.parametrize("owner", ["draft", "target"])
def test_a_model_that_may_stay_in_memory_notes_that_it_is_not_packed(
    owner: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "packs", lambda: False)
    (note,) = GgufRuntime().prepare(request(PAIR.draft, owner)).notes()
    assert "not packed" in note and "-mno-amx-tile" in note


def buffers(path: Path) -> dict[str, float]:
    """MiB by the kind of buffer of a resident model."""
    with log.captured() as lines:
        loading.load_resident(path, loading.NOWHERE, AbortFlag()).close()
    found = re.findall(r"(\w+) model buffer size = +([\d.]+) MiB", "".join(lines))
    return {name: float(mib) for name, mib in found}


@pytest.mark.slow
@pytest.mark.parametrize("packs", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["Q4_0", *(pytest.param(k, marks=pytest.mark.slow) for k in ("Q8_0", "Q4_K_M"))]
)
def test_resident_weights_take_what_the_plan_says(
    kind: str, packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if not packs:
        monkeypatch.setattr(loading, "packs", lambda: False)
    elif not loading.packs():
        pytest.skip("this build of llama.cpp cannot pack weights here")
    path = tmp_path / "model.gguf"
    quantise(PAIR.target, path, kind)
    with closing(runtime.prepare(request(path, "target"))) as prepared:
        weights, largest = prepared.needs().resident or ()
    assert weights.nbytes / 2**20 == pytest.approx(sum(buffers(path).values()), abs=0.05)
    assert (largest.nbytes > 0) == bool(packed_matrices(read_header(path)))


@pytest.mark.parametrize("features", [["AVX2"], ["AVX2", "AMX_INT8"]])
def test_weights_are_packed_unless_that_would_take_amx(
    features: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loading, "cpu_features", lambda: features)
    assert loading.packs() == ("AMX_INT8" not in features)
    (finding,) = [found for found in GgufRuntime().diagnose() if "pack" in found.what]
    assert (finding.level == "fine") == loading.packs()
