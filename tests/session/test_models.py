"""Several models by name, of which one is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.errors import ModelError, SessionClosed
from edgespec.session.models import Models
from edgespec.settings.config import LoadSettings
from embedding_files import write_encoder
from gguf_files import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        tiny_llama().write(found / f"{name}.gguf")
    write_encoder(found / "vectors.gguf")
    (found / "broken.gguf").write_bytes(b"GGUF, cut short")
    return found


@pytest.fixture
def models(folder: Path) -> Iterator[Models]:
    settings = {
        path.stem: LoadSettings(model=path, memory_budget="400MiB") for path in folder.iterdir()
    }
    with Models(settings) as found:
        yield found


def test_the_model_that_is_asked_for_comes_and_the_other_one_leaves(models: Models) -> None:
    one = models.session("one")
    text = one.generate("one", max_tokens=2).text
    assert models.session("one") is one and models.n_loads == 1
    assert models.session("two").generate("one", max_tokens=2).text
    with pytest.raises(SessionClosed):
        one.generate("one")
    vectors = models.embedder("vectors").embed(["rain"])
    assert len(vectors) == 1 and models.loaded == "vectors"
    assert models.session("one").generate("one", max_tokens=2).text == text


def test_a_model_that_cannot_be_loaded_ends_nothing(models: Models) -> None:
    with pytest.raises(ModelError):
        models.session("broken")
    assert models.loaded is None
    assert models.session("one").target.name
