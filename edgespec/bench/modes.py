"""The decoding modes that a bench compares: the engine's and a runtime's baselines.

Defines modes only; which of them can run on given models and limits is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.ports.baselines import Baseline
from edgespec.settings.base import nearest


@dataclass(frozen=True, slots=True)
class BenchDraft:
    """A draft that a bench measures."""

    path: Path
    name: str
    """Name, unique within the bench."""
    in_library: bool = True
    """True if the target's library can run it: a model of the same runtime, in a file of its own.
    """


@dataclass(frozen=True, slots=True)
class Mode:
    """One decoding mode."""

    strategy: str
    text: str
    drafts: bool = True
    resident: bool = False
    """True if it keeps all weights in memory, so that they must fit."""
    engine: EngineSettings | None = None
    """None for a runtime's baseline. Without `remember`, so that all runs start equal."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Settings for loading that differ from those of other modes."""
    draft: BenchDraft | None = None
    names_draft: bool = False
    """True if several drafts are compared, so that the name includes the draft."""
    temperature: float = 0.0

    @property
    def name(self) -> str:
        """The strategy, the draft if several are compared, and the temperature if it is not 0."""
        draft = f" {self.draft.name}" if self.draft and self.names_draft else ""
        warmth = f" @{self.temperature:g}" if self.temperature else ""
        return f"{self.strategy}{draft}{warmth}"

    @property
    def description(self) -> str:
        return f"{self.text}; draft {self.draft.path.name}" if self.draft else self.text

    def at(self, temperature: float) -> Mode:
        """The mode with texts of this temperature."""
        return replace(self, temperature=temperature)

    @property
    def is_slow(self) -> bool:
        """True if passes read weights for about one token each; such modes run for fewer tokens."""
        looks_up = self.engine is not None and bool(self.engine.lookup)
        return not (self.resident or self.drafts or looks_up)


def _rules(pacer: str, fallback: str, n_candidates: int = 8) -> EngineSettings:
    """Settings with fixed rules: the engine neither skips guessing nor drafts during passes."""
    return EngineSettings(
        pacer=pacer,
        n_candidates=n_candidates,
        fallback=fallback,
        no_overlap=True,
        lookup=False,
        step_aside=False,
        remember=False,
    )


ENGINE_MODES = (
    Mode(
        "paged",
        "edgespec without guesses",
        False,
        engine=EngineSettings(lookup=False, remember=False),
    ),
    Mode(
        "linear",
        "one branch of a fixed length",
        engine=_rules("best-first", "fixed", n_candidates=1),
    ),
    Mode(
        "tree-adaptive",
        "LLMCad's tree and threshold",
        engine=_rules("llmcad", "llmcad"),
    ),
    Mode(
        "lookup",
        "edgespec without a draft model: guesses from the text and the target's own words",
        False,
        engine=EngineSettings(lookup=True, remember=False),
    ),
    Mode(
        "auto-draft",
        "edgespec with its defaults, but for guesses by the draft model alone",
        engine=EngineSettings(lookup=False, remember=False),
    ),
    Mode("auto", "edgespec with its defaults", engine=EngineSettings(remember=False)),
)


def known_modes(baselines: Sequence[Baseline]) -> tuple[Mode, ...]:
    """All modes for the models of a runtime, its baselines first."""
    theirs = (Mode(b.name, b.text, b.drafts, b.resident) for b in baselines)
    return (*theirs, *ENGINE_MODES)


def choose(names: Iterable[str] | None, known: Sequence[Mode]) -> tuple[Mode, ...]:
    """The modes with these names, in the order of `known`; None selects all. Raises UsageError."""
    if names is None:
        return tuple(known)
    by_name = {mode.strategy: mode for mode in known}
    requested = [name.strip() for name in names]
    for name in requested:
        if name not in by_name:
            raise UsageError(
                f"--modes: unknown mode {name!r}{nearest(name, by_name)} "
                f"(modes: {', '.join(by_name)})"
            )
    return tuple(mode for mode in known if mode.strategy in requested)


def with_drafts(modes: Iterable[Mode], drafts: Sequence[BenchDraft]) -> list[Mode]:
    """The modes, with those that draft repeated for each draft."""
    several = len(drafts) > 1
    return [
        replace(mode, draft=draft, names_draft=several)
        for mode in modes
        for draft in (drafts if mode.drafts and drafts else [None])
    ]
