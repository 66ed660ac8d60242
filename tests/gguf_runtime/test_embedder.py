"""Embedding models: vectors equal llama.cpp's own, whatever the budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import edgespec
from edgespec import registry
from edgespec.errors import BudgetError, ContextOverflow, ModelError, UsageError
from edgespec.session.embedder import Embedder, load_embedder, plan_embedder
from edgespec.settings.config import LoadSettings
from embedding_files import CLS, LAST, MEAN, RANK, embedding_model, write_decoder, write_encoder
from gguf_files import tiny_llama
from sentences import refuses

TEXTS = ("hello world, how are you?", "the quick brown fox " * 12, "x")
BERT_LIKE = (
    *("modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
    *("jina-bert-v3", "gemma-embedding", "llama-embed"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("embedding")
    return {
        "encoder": write_encoder(folder / "encoder.gguf"),
        "decoder": write_decoder(folder / "decoder.gguf"),
    }


@pytest.fixture(scope="module", params=("encoder", "decoder"))
def model(request: pytest.FixtureRequest, files: dict[str, Path]) -> Path:
    return files[request.param]


@pytest.fixture(scope="module")
def encoder(files: dict[str, Path]) -> Iterator[Embedder]:
    with load_embedder(files["encoder"]) as loaded:
        yield loaded


def assert_llama_cpps_own(model: Path, flash_attn: bool = False) -> None:
    """Compare the vectors of all texts."""
    given = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "flash_attn": flash_attn}
    llama = llama_cpp.Llama(str(model), embedding=True, verbose=False, **given)
    options = {"flash_attn": "on"} if flash_attn else {}
    with load_embedder(LoadSettings(model=model, **options)) as embedder:
        found = embedder.embed(TEXTS)
    expected = [llama.embed(text) for text in TEXTS]
    assert (np.array(found, np.float32) == np.array(expected, np.float32)).all()


@pytest.mark.costly
@pytest.mark.parametrize("pooling", [MEAN, CLS, LAST])
def test_vectors_are_llama_cpps_own_for_every_pooling(pooling: int, tmp_path: Path) -> None:
    assert_llama_cpps_own(write_encoder(tmp_path / "model.gguf", pooling=pooling))


@pytest.mark.slow
def test_a_decoder_that_pools_has_llama_cpps_own_vectors(files: dict[str, Path]) -> None:
    assert_llama_cpps_own(files["decoder"])


def test_flash_attention_is_llama_cpps_own_too(files: dict[str, Path]) -> None:
    assert_llama_cpps_own(files["encoder"], flash_attn=True)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", BERT_LIKE)
def test_every_architecture_has_llama_cpps_own_vectors(architecture: str, tmp_path: Path) -> None:
    model = embedding_model(tmp_path / "model", architecture, MEAN)
    assert_llama_cpps_own(model.write(tmp_path / "model.gguf"))


@pytest.mark.slow
def test_norms_that_llama_cpp_would_die_of_are_refused(tmp_path: Path) -> None:
    wrong = embedding_model(tmp_path / "wrong", "jina-bert-v2", MEAN)
    with refuses(ModelError):
        plan_embedder(LoadSettings(model=wrong.write(tmp_path / "wrong.gguf")))
    alike = {"attention.head_count_kv": 4}
    model = embedding_model(tmp_path / "right", "jina-bert-v2", MEAN, **alike)
    assert_llama_cpps_own(model.write(tmp_path / "right.gguf"))


def test_a_budget_that_is_too_small_names_the_smallest(model: Path) -> None:
    with pytest.raises(BudgetError) as refused:
        load_embedder(LoadSettings(model=model, memory_budget=1 << 20))
    assert refused.value.smallest_bytes


def test_a_normalised_vector_has_length_one(encoder: Embedder) -> None:
    assert np.linalg.norm(encoder.embed("hello", normalize=True)) == pytest.approx(1, abs=1e-6)


def test_a_text_longer_than_the_context_is_refused(encoder: Embedder) -> None:
    with pytest.raises(ContextOverflow) as caught:
        encoder.embed("a b c " * 300)
    assert caught.value.n_ctx == 512


def test_a_text_of_no_tokens_is_refused(encoder: Embedder) -> None:
    with refuses(UsageError):
        encoder.vector([])


def test_unknown_tokens_are_refused(encoder: Embedder) -> None:
    with refuses(UsageError):
        encoder.vector([1 << 20])


def test_a_model_that_writes_is_no_embedder(tmp_path: Path) -> None:
    model = tiny_llama().write(tmp_path / "writes.gguf")
    assert not registry.find(model).embeds(model)
    with refuses(ModelError):
        load_embedder(model)


def test_an_embedder_is_no_target_and_the_error_says_what_to_use(model: Path) -> None:
    assert registry.find(model).embeds(model)
    with refuses(ModelError):
        edgespec.load(str(model))


def test_a_reranker_is_refused(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model.gguf", pooling=RANK)
    with refuses(ModelError):
        load_embedder(model)


def test_a_cancel_that_finds_nothing_ends_no_later_text(encoder: Embedder) -> None:
    expected = encoder.embed("x")
    encoder.cancel()
    assert encoder.embed("x") == expected


def test_a_forgotten_embedder_is_closed_with_a_warning(files: dict[str, Path]) -> None:
    embedder = load_embedder(files["encoder"])
    users = embedder._users
    with pytest.warns(ResourceWarning, match="Embedder"):
        del embedder
    for thread in threading.enumerate():
        if thread.name == "edgespec-close":
            thread.join()
    assert users.is_released


@pytest.mark.parametrize("tokens", ["a", None, [1.5]])
def test_what_are_no_tokens_is_refused(encoder: Embedder, tokens: Any) -> None:
    with refuses(UsageError):
        encoder.vector(tokens)
