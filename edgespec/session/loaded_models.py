"""A target and its draft after loading, with the plan that they were loaded under."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import LanguageModel
from edgespec.settings.config import LoadSettings


@dataclass(frozen=True, slots=True)
class LoadedModels(Closeable):
    """A target and its draft, loaded under one plan; close them together."""

    target: LanguageModel
    draft: LanguageModel | None
    plan: MemoryPlan
    load_report: dict[str, float]
    """Seconds by phase of loading, and `total`."""
    settings: LoadSettings | None = None
    """The settings that they were loaded by, without a draft that was left out."""
    needs: ModelNeeds | None = None
    """Memory needs of the target, for other budgets."""
    looks_up: bool = False
    """Guesses come from the text where the engine's settings leave that open: the target pages and
    has no draft."""

    def settled(self, settings: EngineSettings) -> EngineSettings:
        """The engine's settings, with guesses from the text where they are left open and planned
        for."""
        is_open = self.looks_up and settings.lookup is None
        return settings.but(lookup=True) if is_open else settings

    def close(self) -> None:
        """Free everything. Idempotent."""
        owned = (self.target, self.draft)
        close_all(*(part.close for part in owned if part is not None))
