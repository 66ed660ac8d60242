"""Requests for models, and models that contracts of the port open once for a class of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.ports import LanguageModel
from edgespec.registry import ModelRequest


def model_request(path: Path, **changes: Any) -> ModelRequest:
    """A request for a small target, but for what changes."""
    return replace(ModelRequest(path, "target", 128, 9, 4, 1), **changes)


def clear(model: LanguageModel) -> None:
    """Empty all slots."""
    for slot in range(model.info.n_slots):
        model.truncate(0, slot)


def parameters_of(request: pytest.FixtureRequest) -> str:
    return repr(getattr(request.node, "callspec", None) and request.node.callspec.params)


class KeptOpen:
    """Models that tests of a class share, by the parameters of their factory."""

    def __init__(self) -> None:
        self._models: dict[str, LanguageModel] = {}
        self.n_committed_at_first: list[int] = []
        """Committed tokens of the slots of every model that was opened."""

    def model(
        self, request: pytest.FixtureRequest, factory: Callable[[], LanguageModel]
    ) -> LanguageModel:
        """The open model of a test's parameters, with empty slots."""
        kind = parameters_of(request)
        if kind not in self._models:
            opened = self._models[kind] = factory()
            self.n_committed_at_first += map(opened.committed_of, range(opened.info.n_slots))
        clear(self._models[kind])
        return self._models[kind]

    def give_away(self, model: LanguageModel) -> None:
        """Leave a model to the caller, who closes it; the next test opens another."""
        self._models = {kind: kept for kind, kept in self._models.items() if kept is not model}

    def close(self) -> None:
        for model in self._models.values():
            model.close()


class OpensModels:
    """Fixtures of contracts: models, each opened once for all tests of a class."""

    opened: Callable[[], LanguageModel]
    """Opens the model; a class that needs fixtures for that has a `model_factory` of its own."""

    @pytest.fixture
    def model_factory(self) -> Callable[[], LanguageModel]:
        return type(self).opened

    @pytest.fixture(scope="class")
    @classmethod
    def kept_open(cls) -> Iterator[KeptOpen]:
        kept = KeptOpen()
        yield kept
        kept.close()

    @pytest.fixture
    def model(
        self,
        request: pytest.FixtureRequest,
        kept_open: KeptOpen,
        model_factory: Callable[[], LanguageModel],
    ) -> LanguageModel:
        """A model with an empty KV cache. It is opened once, since most tests are shorter than
        opening."""
        return kept_open.model(request, model_factory)
