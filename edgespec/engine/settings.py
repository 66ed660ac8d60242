"""Settings of the engine: rules by name, and limits of trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from edgespec.rules.pacer import Limits
from edgespec.settings.config import DRAFTING, USUAL_DRAFT_MAX, GenerateSettings, Speculation
from edgespec.values import ModelInfo


class EngineSettings(Speculation):
    """Names of the engine's rules, and options of drafting."""

    pins_draft_max: bool = False
    """Use `draft_max` even if it is the default, instead of the number that the memory plan
    chooses; other values are always used."""
    n_candidates: int = Field(default=8, ge=1)
    """Number of successors of a node that the pacer chooses from; 1 for a line."""
    remember: bool = True
    """Load the learnt state of earlier runs of this pair and store it at the end, in a small file
    in the cache folder. It influences guesses, never the text."""
    step_aside: bool = True
    """Decode without the draft while that is measured to be faster."""

    if TYPE_CHECKING:  # pydantic converts names of rules, which type checkers do not know

        def __init__(self, **settings: Any) -> None: ...

    @classmethod
    def of(cls, text: GenerateSettings) -> EngineSettings:
        """The engine's part of the settings of a text."""
        shared = text.model_dump(include=cls.model_fields.keys() & text.known())
        return cls(**shared, pins_draft_max="draft_max" in text.model_fields_set)

    @model_validator(mode="after")
    def _settle(self) -> Self:
        if self.draft_max != USUAL_DRAFT_MAX:
            object.__setattr__(self, "pins_draft_max", True)
        return self

    @property
    def unusual(self) -> str:
        """Settings that differ from their defaults, as text; part of the cache key of costs."""
        changed = self.model_dump(exclude_defaults=True, exclude={"remember"})
        return ", ".join(f"{name}={value}" for name, value in changed.items())

    @property
    def of_guesses(self) -> Sequence[str]:
        """Names of the rules and limits of guessing that differ from their defaults."""
        changed = self.model_dump(exclude_defaults=True).keys() & DRAFTING
        return sorted(changed | ({"draft_max"} if self.pins_draft_max else set()))

    def limits_for(self, info: ModelInfo) -> Limits:
        """The limits of trees over this target."""
        max_nodes = info.max_nodes
        if self.pins_draft_max:
            max_nodes = min(max_nodes, 1 + self.draft_max)
        max_depth = max_nodes - 1
        if not info.tree_capable:
            max_depth = min(max_depth, info.max_rollback)
        return Limits(max_nodes, info.max_branches, max_depth)
