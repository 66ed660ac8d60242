"""A note says if a draft may change a token by llama.cpp's rounding, and only then."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_gguf_types import quantised

from edgespec.memory.budget import MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.registry import ModelRequest
from edgespec_runtimes.gguf import runtime
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.weights.packing import rounding_notes
from gguf_files import TYPE_CODES, Tensor, tiny_llama
from session_cases import PLAN
from zoo_files import write_model
from zoo_species import Species

REQUEST = ModelRequest(embedded_pair().target, "target", 256, 8, 8, 1)
TREES = replace(PLAN, max_nodes=8)
PAGED = replace(TREES, paged=True)


def notes(request: ModelRequest, plan: MemoryPlan | None = TREES) -> list[str]:
    with closing(runtime.prepare(request)) as prepared:
        return [note for note in prepared.notes(plan) if "rounds several rows otherwise" in note]


@pytest.mark.parametrize("plan", [TREES, PAGED], ids=["resident", "paged"])
def test_a_quantised_model_needs_no_note(plan: MemoryPlan) -> None:
    assert notes(REQUEST, plan) == []


def test_matrices_that_are_not_quantised_are_told_where_they_cannot_be_evened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec_runtimes.gguf.prepared.can_replace_products", lambda: False)
    path = tiny_llama(kind="F16").write(tmp_path / "half.gguf")
    (note,) = notes(replace(REQUEST, path=path, ctx_size=0))
    assert "matrices are not quantised" in note


def test_stacks_of_matrices_that_are_not_quantised_are_told(tmp_path: Path) -> None:
    model = tiny_llama()
    stack = Tensor("blk.0.attn_k_b.weight", (32, 16, 2), TYPE_CODES["F16"], bytes(2048))
    model.tensors.append(stack)
    header = read_header(model.write(tmp_path / "m.gguf"))
    (note,) = rounding_notes(
        header, "it", products_are_invariant=True, is_packed=False, tiles_are_avoidable=True
    )
    assert "attn_k_b.weight is the first" in note


def test_turns_of_a_hybrid_with_k_quants_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state cannot go back, and its prompts go through tiles; Q8_0 stands in for K-quants."""
    path = write_model(tmp_path / "m.gguf", Species("lfm2"))
    request = replace(REQUEST, path=path)
    with closing(runtime.prepare(request)) as prepared:
        assert not [note for note in prepared.notes(PAGED) if "a further turn may differ" in note]
        monkeypatch.setattr(
            "edgespec_runtimes.gguf.weights.packing.TILED_TYPES", frozenset({"Q8_0"})
        )
        assert [note for note in prepared.notes(PAGED) if "a further turn may differ" in note]


@pytest.mark.parametrize(("system", "n_notes"), [("linux", 0), ("darwin", 1)])
def test_tiles_of_k_quants_are_told_where_they_cannot_be_avoided(
    system: str, n_notes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantised("Q6_K", tmp_path)
    monkeypatch.setattr("edgespec_runtimes.gguf.prepared.sys.platform", system)
    told = notes(replace(REQUEST, path=path), PAGED)
    assert len(told) == n_notes
    assert all("tiles" in note for note in told)
