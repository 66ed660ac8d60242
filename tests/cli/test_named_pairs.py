"""A fetched model guesses with the head that comes with edgespec, or the draft of its recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edgespec.cli.invocation import settings_from
from edgespec.files import cache_folder
from edgespec.models import catalogue, packaged
from edgespec.models.embedded import models_folder
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


def test_the_head_that_comes_with_edgespec_guesses_without_a_flag(target: Path, head: Path) -> None:
    command = settings_from(argparse.Namespace(model="smollm2"))
    assert command.load.draft == head


def test_the_head_has_a_name(head: Path) -> None:
    found = next(model for model in catalogue.embedded() if model.name == "smollm2-head")
    assert (found.path, found.role) == (head, "head")


def test_the_draft_that_the_recipe_left_wins_over_it(target: Path, head: Path) -> None:
    draft = left_draft()
    command = settings_from(argparse.Namespace(model="smollm2"))
    assert command.load.draft == draft
    assert any("--no-draft does without" in note for note in command.notes)


def test_it_does_not_guess_where_no_draft_is_asked_for(target: Path) -> None:
    left_draft()
    command = settings_from(argparse.Namespace(model="smollm2", no_draft=True))
    assert command.load.draft is None
