"""A target and its draft after loading, with the plan that they were loaded under."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.concurrency.owning import Closeable, close_all
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.needs import ModelNeeds
from edgespec.ports import LanguageModel


@dataclass(frozen=True, slots=True)
class LoadedModels(Closeable):
    """A target and its draft, loaded under one plan; close them together."""

    target: LanguageModel
    draft: LanguageModel | None
    plan: MemoryPlan
    load_report: dict[str, float]
    """Seconds by phase of loading, and `total`."""
    path: Path | None = None
    """Path of the target."""
    needs: ModelNeeds | None = None
    """Memory needs of the target, for other budgets."""
    budget: int | str = 0
    """The budget that was asked for, as it was written."""
    prompt_cache: tuple[Path, int] | None = None
    """Folder of the prompt cache and its most bytes."""
    looks_up: bool = False
    """Guesses come from the text where the engine's settings leave that open: the target pages and
    has no draft."""

    reserve: int = 0
    """Bytes that the plan keeps for what else the process does."""

    def settled(self, settings: EngineSettings) -> EngineSettings:
        """The engine's settings, with guesses from the text where they are left open and planned
        for."""
        if self.looks_up and settings.lookup is None:
            return settings.but(lookup=True)
        return settings

    def close(self) -> None:
        """Free everything. Idempotent."""
        owned = (self.target, self.draft)
        close_all(*(part.close for part in owned if part is not None))
