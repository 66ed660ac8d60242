"""Needs of models of a folder are kept: a server of many begins without planning them again."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.console import Console
from edgespec.cli.model_list import ModelList
from edgespec.session import embedder, session
from embedding_files import write_encoder
from gguf_files import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    tiny_llama().write(found / "one.gguf")
    write_encoder(found / "vectors.gguf")
    return found


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were planned."""
    found: list[str] = []
    plan, plan_embedder = session.plan, embedder.plan_embedder

    def of_text(settings: Any, *others: Any) -> Any:
        found.append(settings.model.stem)
        return plan(settings, *others)

    def of_vectors(settings: Any) -> Any:
        found.append(settings.model.stem)
        return plan_embedder(settings)

    monkeypatch.setattr(session, "plan", of_text)
    monkeypatch.setattr(embedder, "plan_embedder", of_vectors)
    return found


def listed(folder: Path, **flags: object) -> ModelList:
    given: dict[str, object] = {"memory_budget": "2GiB", "models_dir": str(folder)}
    return ModelList(Namespace(**(given | flags)), Console(quiet=True), None, n_parallel="1")


def needs_of(known: ModelList) -> list[dict[str, object]]:
    return [asdict(model) for model in known.models]


def test_models_are_planned_again_only_for_other_settings_or_files(
    folder: Path, planned: list[str], tmp_path: Path
) -> None:
    first = listed(folder)
    assert planned == ["one", "vectors"]
    again = listed(folder, memory_budget="1GiB")
    assert planned == ["one", "vectors"]
    assert needs_of(again) == needs_of(first) and again.room_bytes == first.room_bytes > 0
    assert listed(folder, ctx_size="64").models[0].beside_bytes < first.models[0].beside_bytes
    assert planned == ["one", "vectors", "one", "vectors"]
    os.utime(folder / "one.gguf", ns=(0, 0))
    listed(folder)
    assert planned[4:] == ["one"]


def test_a_damaged_file_of_needs_is_replaced(folder: Path, planned: list[str]) -> None:
    first = listed(folder)
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "edgespec" / "needs"
    for file in cache.iterdir():
        file.write_text('{"needs": [1]}')
    assert needs_of(listed(folder)) == needs_of(first)
