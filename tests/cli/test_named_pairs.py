"""`--pair`: the embedded pair, or a fetched model with the head that comes with edgespec, or the
draft that its recipe left."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edgespec.bench.bench_settings import BenchSettings
from edgespec.cli import fetching
from edgespec.cli.commands import demo
from edgespec.cli.console import Console
from edgespec.cli.invocation import settings_from
from edgespec.errors import UsageError
from edgespec.files import cache_folder
from edgespec.models import catalogue, packaged
from edgespec.models.embedded import embedded_pair, models_folder
from edgespec.models.packaged import ShippedHead

pytestmark = pytest.mark.usefixtures("own_cache_folder")


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real model, as if it had been fetched."""
    cache_folder.make_folder()
    place = packaged.cache_path("smollm2")
    place.write_bytes(b"GGUF")
    monkeypatch.setattr(packaged, "fetch", lambda name, progress=None: packaged.cache_path(name))
    return place


def left_draft() -> Path:
    place = packaged.cache_path("smollm2-draft")
    place.write_bytes(b"GGUF")
    return place


def test_the_embedded_pair_has_a_name() -> None:
    pair = fetching.pair_named("embedded", Console())
    assert (pair.target, pair.draft) == (embedded_pair().target, embedded_pair().draft)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A head that comes with edgespec."""
    shipped = ShippedHead(
        file="smollm2/head.gguf",
        licence="Apache-2.0",
        parameters=1,
        quantization="Q8_0",
        sha256="0" * 64,
        size_bytes=1,
    )
    model = packaged.models()["smollm2"].model_copy(update={"head": shipped})
    monkeypatch.setattr(packaged, "models", lambda: {"smollm2": model})
    return models_folder() / "smollm2/head.gguf"


def test_a_fetched_model_has_the_head_that_comes_with_edgespec(target: Path, head: Path) -> None:
    pair = fetching.pair_named("smollm2", Console())
    assert (pair.target, pair.draft) == (target, head)


def test_a_draft_that_the_recipe_left_wins_over_it(target: Path, head: Path) -> None:
    draft = left_draft()
    assert fetching.pair_named("smollm2", Console()).draft == draft


def test_the_head_that_comes_with_edgespec_guesses_without_a_flag(target: Path, head: Path) -> None:
    command = settings_from(argparse.Namespace(model="smollm2", no_tuned=True))
    assert command.load.draft == head


def test_the_head_has_a_name(head: Path) -> None:
    found = next(model for model in catalogue.embedded() if model.name == "smollm2-head")
    assert (found.path, found.role) == (head, "head")


def test_another_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="--pair smol: there are embedded, smollm2"):
        fetching.pair_named("smol", Console())


def test_a_target_that_is_as_large_already_is_not_enlarged(target: Path) -> None:
    pair = fetching.pair_named("smollm2", Console())
    assert demo.enlarged(pair, 4, Console()) == (target, pair.draft)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_enlarged_targets_of_two_pairs_have_two_files() -> None:
    files = {cache_folder.enlarged_target("0" * 64, 1 << 30, name) for name in ("a", "b")}
    assert len(files) == 2


def test_a_pair_and_a_model_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="--pair is of the enlarged target"):
        BenchSettings.model_validate({"model": Path("a.gguf"), "pair": "smollm2"})


def test_the_draft_that_the_recipe_left_guesses_without_a_flag(target: Path) -> None:
    draft = left_draft()
    command = settings_from(argparse.Namespace(model="smollm2", no_tuned=True))
    assert command.load.draft == draft
    assert any("--no-draft does without" in note for note in command.notes)


def test_it_does_not_guess_where_no_draft_is_asked_for(target: Path) -> None:
    left_draft()
    command = settings_from(argparse.Namespace(model="smollm2", no_tuned=True, no_draft=True))
    assert command.load.draft is None
