"""A head in a GGUF file beside an ONNX target: EAGLE-3 and DFlash guess from its hidden states, and
its text is its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="the ONNX runtime is not installed")
pytest.importorskip("llama_cpp", reason="the GGUF runtime is not installed")

from onnx import numpy_helper

import edgespec
from edgespec.errors import ModelError
from edgespec.rules.sampling import SamplingParams
from edgespec.settings.config import LoadSettings
from edgespec_runtimes import gguf
from edgespec_runtimes import onnx as onnx_runtime
from engine_cases import AskedEngine as Engine
from engine_cases import finish
from gguf_files import (
    Gguf,
    borrowing,
    predictable_pair,
    repeating_pair,
    tiny_dflash,
    tiny_eagle3,
)
from head_cases import LINE, PROMPT, head_request
from onnx_files import save, write_llama
from onnx_models import request
from paging_contract import load_paged

N_TOKENS = 40
GREEDY = SamplingParams(temperature=0)
PAIRS = {"EAGLE-3": predictable_pair, "DFlash": repeating_pair}
HEADS: dict[str, Callable[[], Gguf]] = {"EAGLE-3": tiny_eagle3, "DFlash": tiny_dflash}


def write_twin(target: Gguf, folder: Path) -> Path:
    """An ONNX model that computes what a GGUF target does whose layers add nothing."""
    path = write_llama(folder, layers=4, vocab=297, context=128)
    graph = onnx.load(path)
    lent = {tensor.name: np.frombuffer(tensor.data, "<f4") for tensor in target.tensors}
    embeddings = lent["token_embd.weight"].reshape(-1, 64)
    values = {
        "model.embed_tokens.weight": embeddings,
        "onnx::MatMul_head": lent.get("output.weight", embeddings).reshape(-1, 64).T,
        "model.norm.weight": lent["output_norm.weight"],
    }
    for tensor in graph.graph.initializer:
        if tensor.name.endswith(("_o", "_down")):
            values[tensor.name] = np.zeros(tensor.dims, np.float32)
        if tensor.name in values:
            content = np.ascontiguousarray(values[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(content, tensor.name))
    save(graph, path)
    return folder


@pytest.fixture(
    scope="module",
    params=["EAGLE-3", pytest.param("DFlash", marks=pytest.mark.slow)],
)
def good(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A target, and a head that knows it."""
    folder = tmp_path_factory.mktemp("good")
    target, head = PAIRS[request.param]()
    return write_twin(target, folder / "target"), head.write(folder / "head.gguf")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that no head knows."""
    return write_llama(tmp_path_factory.mktemp("strange"), layers=4, vocab=297, context=128).parent


def settings_of(target: Path, head: Path | None, n_parallel: int = 1) -> LoadSettings:
    return LoadSettings(model=target, draft=head, memory_budget="8GiB", n_parallel=n_parallel)


@pytest.mark.slow
@pytest.mark.parametrize("is_paged", [False, True], ids=["resident", "paged"])
@pytest.mark.parametrize("kind", HEADS)
def test_the_text_is_the_target_s_own(
    strange: Path, kind: str, is_paged: bool, tmp_path: Path
) -> None:
    path = HEADS[kind]().write(tmp_path / "head.gguf")
    with ExitStack() as stack:
        prepared = stack.enter_context(closing(onnx_runtime.runtime.prepare(request(strange))))
        wanted = head_request(path, target=strange, ctx_size=128, max_nodes=17)
        prepared_head = stack.enter_context(closing(gguf.runtime.prepare(wanted)))
        prepared.offer_features(
            prepared_head.info.feature_layers, prepared_head.info.feature_values
        )
        target = load_paged(prepared, 0.3) if is_paged else prepared.load(None)
        stack.enter_context(closing(target))
        head = stack.enter_context(closing(prepared_head.load(None)))
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=5)
            with Engine(target) as engine:
                alone = finish(engine.generate(PROMPT, sampling, 24))
            target.truncate(0)
            with Engine(target, head, LINE) as engine:
                text = finish(engine.generate(PROMPT, sampling, 24))
            target.truncate(0)
            assert text.tokens == alone.tokens
            assert text.speculation.verified > 0


@pytest.mark.slow
def test_a_head_that_knows_its_target_saves_passes(good: tuple[Path, Path]) -> None:
    with edgespec.load(settings_of(*good), LINE) as session:
        result = session.generate(PROMPT, GREEDY, N_TOKENS)
    assert result.speculation.tokens_per_pass > 3
    assert [source.source for source in result.speculation.sources] == ["draft"]


def test_a_head_that_borrows_matrices_is_refused(good: tuple[Path, Path], tmp_path: Path) -> None:
    target, head = predictable_pair()
    path = borrowing(head, target, "output.weight").write(tmp_path / "head.gguf")
    with pytest.raises(ModelError, match=r"head\.gguf takes matrices .* target is no GGUF file"):
        edgespec.plan(settings_of(good[0], path))
