"""A drafter of another package is one entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from edgespec import UsageError, extras
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.lookup import LookupSource
from edgespec.ports import Vocabulary
from edgespec.values import ModelInfo
from engine_cases import GREEDY, PROMPT, counting, finish
from engine_cases import AskedEngine as Engine
from sentences import refuses


class Repeats(LookupSource):
    """A drafter of another package."""

    name = "repeats"


def repeats(info: ModelInfo, vocabulary: Vocabulary) -> Repeats:
    return Repeats(vocabulary.eog_tokens)


ADDED = {"edgespec.drafters": EntryPoint("repeats", f"{__name__}:repeats", "edgespec.drafters")}


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    real = extras.entry_points
    found = {group: [entry_point] for group, entry_point in ADDED.items()}
    monkeypatch.setattr(extras, "entry_points", lambda group: found.get(group) or real(group))


def sources(settings: EngineSettings) -> dict[str, int]:
    """Accepted guesses of a text by source."""
    with Engine(counting(), None, settings) as engine:
        stats = finish(engine.generate(PROMPT, GREEDY, 40)).speculation
    return {source.source: source.accepted for source in stats.sources}


def test_a_drafter_guesses_where_lookup_does(added: None) -> None:
    assert sources(EngineSettings(lookup=True, step_aside=False))["repeats"] > 0
    assert sources(EngineSettings()) == {}


def test_a_part_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:made", "edgespec.drafters")
    monkeypatch.setattr(extras, "entry_points", lambda group: [broken])
    with refuses(UsageError):
        Engine(counting(), counting())
