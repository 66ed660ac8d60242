"""Models as onnxruntime-genai's builder writes them keep every contract, resident and paged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sentences import refuses

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")

import onnx

from edgespec.engine.settings import EngineSettings
from edgespec.errors import ModelError
from edgespec.session import session
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.onnx import runtime
from edgespec_runtimes.onnx.files.source_model import read_source
from edgespec_runtimes.onnx.model import OnnxModel
from genai_models import ALL, GEMMA, LLAMA, QWEN, changed_copy, with_two_tables, without_rings
from one_tree import ROOT, OneTree
from onnx_models import N_CTX, open_paged, open_resident, request
from onnx_reference import WholeModel
from paging_contract import PagingContract, one_by_one
from port_calls import evaluate, prefill
from port_contract import TEXT, PortContract

ROUNDING = {LLAMA: 1e-4, GEMMA: 1e-4, QWEN: 0.2}
"""Largest difference of a batch's logits from those of single tokens: in MatMulNBits of accuracy
level 4 activations are rounded to eight bits, and a last bit decides which way."""


@pytest.mark.slow
class TestLlamaKeepsTheContract(PortContract):
    atol = ROUNDING[LLAMA]
    opened = partial(open_resident, LLAMA)


@pytest.mark.slow
class TestPagedGenaiFourBitsKeepTheContract(PortContract):
    """Fast tests hold its halves: paged matrices of four bits, and other paged models of genai."""

    atol = ROUNDING[QWEN]
    opened = partial(open_paged, QWEN)


class TestPagedWindowsKeepTheContract(PortContract):
    """Every branch is a row in a model whose layers see fewer tokens than the context holds."""

    atol = ROUNDING[GEMMA]
    opened = partial(open_paged, GEMMA)


@pytest.mark.slow
class TestPagedGenaiModelKeepsThePagingContract(PagingContract):
    """Fast tests hold the pager to it with other exports."""

    @pytest.fixture
    def paged(self) -> Iterator[OnnxModel]:
        model = open_paged(QWEN)
        yield model
        model.close()


@pytest.mark.costly
@pytest.mark.parametrize(
    "share",
    [None, 0.6, pytest.param(0.0, marks=pytest.mark.slow)],
    ids=["resident", "paged", "smallest"],
)
@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_logits_of_single_tokens_equal_the_whole_models(
    folder: Path, share: float | None, tmp_path: Path
) -> None:
    model = open_resident(folder) if share is None else open_paged(folder, share)
    tokens = model.vocabulary.encode(2 * TEXT)[:48]
    expected = WholeModel(without_rings(folder, tmp_path)).decode_all(tokens)
    assert np.allclose(one_by_one(model, tokens), expected, atol=1e-4)
    model.close()


@pytest.mark.costly
@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_drafted_greedy_texts_equal_the_whole_models(folder: Path, tmp_path: Path) -> None:
    """The model drafts for itself, so that its guesses stand and trees are committed."""
    whole = WholeModel(without_rings(folder, tmp_path))
    settings = LoadSettings(model=folder, draft=folder, ctx_size=96)
    rules = EngineSettings(fallback="fixed", draft_max=7, step_aside=False)
    with session.load(settings, rules) as running:
        for prompt in ("then the", "a list of", "no tree"):
            tokens = running.encode(prompt)
            expected, margins = whole.greedy(tokens, 40, frozenset({0}))
            result = running.generate(tokens, max_tokens=40)
            same = [ours == theirs for ours, theirs in zip(result.tokens, expected, strict=False)]
            first_other = same.index(False) if False in same else len(same)
            assert first_other == len(expected) or margins[first_other] < ROUNDING[folder]
            assert result.speculation.accepted > 0


def streamed(folder: Path, **options: object) -> dict[str, int]:
    """Bytes of each segment of a model of which nothing is pinned."""
    model = open_paged(folder, 0.0, **options)
    assert model._weights is not None
    found = {group.segment.name: group.segment.nbytes for group in model._weights.groups}
    model.close()
    return found


@pytest.mark.parametrize("n_ctx", [N_CTX, 256])
def test_lookups_read_rows_of_the_tables_and_never_the_tables(n_ctx: int) -> None:
    """The embedding and the head are one tensor; what precedes the layers reads the angles of the
    context and the trees alone, of at most 256 positions."""
    segments = streamed(QWEN, ctx_size=n_ctx)
    assert segments["prelude"] == 2 * min(256, n_ctx + 4 * 17) * 8 * 4
    assert segments["head"] > 320 * 64 // 2


def test_a_pass_reads_a_table_that_lookup_and_head_share_once() -> None:
    """It lies by column, as the head reads it; the rows that a lookup needs are spread over it."""
    whole = read_source(LLAMA / "model.onnx").weight_bytes
    assert sum(streamed(LLAMA, ctx_size=256).values()) == pytest.approx(whole, rel=0.02)


@pytest.mark.costly
@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
@pytest.mark.parametrize("n_ctx", [64, 256])
def test_a_tree_fits_at_the_end_of_a_context(n_ctx: int, folder: Path, tmp_path: Path) -> None:
    """Fused attention wants an angle for each slot in use; the model has as many as positions."""
    assert difference_at_the_end(folder, without_rings(folder, tmp_path), n_ctx) < ROUNDING[folder]


def test_branches_beside_a_text_do_not_make_it_longer(tmp_path: Path) -> None:
    """LongRoPE has other angles for long texts, chosen by how many tokens there are."""
    path = with_two_tables(LLAMA, tmp_path, first=64)
    assert runtime.describe(tmp_path).context_length == 64
    assert difference_at_the_end(tmp_path, path, 64) < ROUNDING[LLAMA]


def difference_at_the_end(folder: Path, whole_path: Path, n_ctx: int) -> float:
    """Largest difference of the logits of a tree at a context's end from the whole model's."""
    model = open_resident(folder, ctx_size=n_ctx)
    tokens = (8 * model.vocabulary.encode(2 * TEXT))[: n_ctx - 1]
    expected = WholeModel(whole_path).decode_all(tokens)[-3:]
    prefill(model, tokens[:-3])
    tree, path = OneTree(tokens[-3]), [ROOT]
    for token in tokens[-2:]:
        for other in range(1, 5):
            tree.add(path[-1], (token + other) % 320, 0.1)
        path.append(tree.add(path[-1], token, 0.5))
    logits = evaluate(model, tree, range(len(tree)))[path]
    model.close()
    return float(np.abs(logits - expected).max())


def test_models_are_described_by_the_builders_configuration() -> None:
    details = runtime.describe(QWEN)
    assert (details.quantization, details.context_length) == ("INT4", 256)
    assert (details.embedding_length, details.heads, details.kv_heads) == (64, 4, 2)
    matrices = 4 * 64 * (64 + 2 * 32 + 64 + 3 * 64) + 320 * 64
    assert 0 < details.parameters - matrices < 1000  # norms; what scales weights does not count


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.input.add(name="block_table"),
        lambda graph: setattr(graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 1),
    ],
)
def test_builds_that_a_tree_cannot_use_are_refused(
    change: Callable[[onnx.GraphProto], object], tmp_path: Path
) -> None:
    model, path = changed_copy(LLAMA, tmp_path)
    change(model.graph)
    onnx.save(model, path)
    with refuses(ModelError):
        runtime.prepare(request(tmp_path))
