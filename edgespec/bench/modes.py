"""The ways of decoding that a bench compares: the engine's, by name, and a runtime's baselines.

It says what a mode is. Which of them can run on given models and limits is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError
from edgespec.ports.baselines import Baseline
from edgespec.settings.base import nearest
from edgespec.settings.config import FallbackName as Fallback
from edgespec.settings.config import PacerName as Pacer


@dataclass(frozen=True, slots=True)
class BenchDraft:
    """A draft that a bench measures."""

    path: Path
    name: str
    """Name that no other draft of the bench has."""
    in_library: bool = True
    """The target's own library can run it, too: it is a model of the same runtime, in a file of
    its own."""
    is_own: bool = False
    """A layer of the target's own, which guesses for one text at a time."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of decoding."""

    strategy: str
    text: str
    drafts: bool = True
    resident: bool = False
    """Keeps all weights in memory: applies only where they fit."""
    takes_several: bool = True
    """Can decode several texts at once."""
    engine: EngineSettings | None = None
    """None for a runtime's baseline. Runs remember nothing, so that all begin alike."""
    draft: BenchDraft | None = None
    names_draft: bool = False
    """Several drafts are compared: the name says which one."""
    n_texts: int | None = None
    """Texts at once, where a bench compares their numbers."""

    @property
    def name(self) -> str:
        """The strategy, the draft among several, and the number of texts."""
        draft = f" {self.draft.name}" if self.draft and self.names_draft else ""
        return f"{self.strategy}{draft}{'' if self.n_texts is None else f' x{self.n_texts}'}"

    def together(self, n_texts: int) -> Mode:
        """The mode with so many texts at once."""
        return replace(self, n_texts=n_texts)

    @property
    def is_slow(self) -> bool:
        """True for modes whose passes read weights and yield hardly more than one token; they get
        fewer tokens."""
        guesses = self.engine is not None and (self.drafts or bool(self.engine.lookup))
        return not self.resident and not guesses


def _rules(pacer: str, fallback: str) -> EngineSettings:
    """Rules that stay as they are: the engine neither leaves them out nor drafts beside passes."""
    return EngineSettings(
        pacer=pacer,
        fallback=fallback,
        overlap=False,
        lookup=False,
        step_aside=False,
        remember=False,
    )


ENGINE_MODES = (
    Mode("paged", "edgespec without a draft", False, engine=EngineSettings(remember=False)),
    Mode(
        "linear",
        "one branch of a fixed length",
        engine=_rules(Pacer.LINEAR, Fallback.FIXED),
    ),
    Mode(
        "tree-adaptive",
        "LLMCad's tree and threshold",
        engine=_rules(Pacer.LLMCAD, Fallback.LLMCAD),
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
    """All modes for the models of a runtime, its own baselines first."""
    theirs = (Mode(b.name, b.text, b.drafts, b.resident, b.takes_several) for b in baselines)
    return (*theirs, *ENGINE_MODES)


def choose(names: Iterable[str] | None, known: Sequence[Mode]) -> tuple[Mode, ...]:
    """The modes of these names, in the order of `known`; all without names. Raises UsageError."""
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
    """The modes, those that draft once with each of the drafts."""
    several = len(drafts) > 1
    return [
        replace(mode, draft=draft, names_draft=several)
        for mode in modes
        for draft in (drafts if mode.drafts and drafts else [None])
    ]
