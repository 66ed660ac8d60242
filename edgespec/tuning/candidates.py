"""The settings that `tune` compares; none of them changes the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgespec import runtimes
from edgespec.engine.settings import EngineSettings
from edgespec.settings.config import ABOUT_THE_DRAFT, DRAFTING, LoadSettings, SamplingParams
from edgespec.settings.options import declared, option_names

DRAFT_MAXIMA = (8, 24, 48)
"""Values of draft_max to compare with the planned tree size."""


@dataclass(frozen=True, slots=True)
class TuningJob:
    """The models and settings to tune, and the settings that the user fixed."""

    load: LoadSettings
    """Settings for loading, with the first draft."""
    engine: EngineSettings
    drafts: tuple[Path, ...]
    """Drafts to compare, even if time is short."""
    default_threads: int
    fixed: frozenset[str] = frozenset()
    """Names of settings that the user gave, which are not changed."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Sampling of the texts by which candidates are judged."""
    has_optional_drafts: bool = False
    """True if no draft was asked for: the target is tuned alone where none fits beside it."""

    def beginning_with(self, draft: Path | None) -> TuningJob:
        """The job with `draft` (or none) as the default."""
        return replace(self, load=Candidate(draft).load(self.load))

    @property
    def other_drafts(self) -> list[Candidate]:
        """The defaults with each of the non-default drafts."""
        others = (draft for draft in self.drafts if draft != self.load.draft)
        return [Candidate(draft) for draft in others]

    @property
    def defaults(self) -> Candidate:
        """The settings of an untuned run."""
        return Candidate(self.load.draft)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft, or none, and the settings that differ from the defaults."""

    draft: Path | None
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Changed settings, by their names in a preset."""

    def load(self, settings: LoadSettings) -> LoadSettings:
        """`settings` with this candidate's models, threads and options."""
        values = settings.without_draft().as_given()
        if self.draft is not None:
            values = settings.as_given() | {"draft": self.draft}
        known = LoadSettings.known()
        values |= {name: value for name, value in self._applying.items() if name in known}
        return LoadSettings.model_validate(values)

    def engine(self, settings: EngineSettings) -> EngineSettings:
        """`settings` with this candidate's changes and without `remember`, so that all runs start
        equal."""
        changed = self.changed
        return settings.but(
            draft_max=changed.get("draft_max", settings.draft_max),
            pins_draft_max="draft_max" in changed or settings.pins_draft_max,
            no_overlap=changed.get("no_overlap", settings.no_overlap),
            lookup=changed.get("lookup", settings.lookup),
            remember=False,
        )

    def settings(self, defaults: Candidate) -> dict[str, Any]:
        """The settings that differ from the defaults, by their names in a preset."""
        chosen: dict[str, Any] = {}
        if self.draft != defaults.draft:
            chosen = {"no_draft": True} if self.draft is None else {"draft": self.draft}
        return chosen | self._applying

    def combined(self, other: Candidate, defaults: Candidate) -> Candidate:
        """The candidate with the settings in which `other` differs from the defaults."""
        draft = self.draft if other.draft == defaults.draft else other.draft
        return Candidate(draft, {**self.changed, **other.changed})

    @property
    def _applying(self) -> dict[str, Any]:
        """The changes that have an effect with the candidate's draft, or without one."""
        idle: set[str] = set()
        if self.draft is None:
            idle = {*ABOUT_THE_DRAFT, *option_names("draft")}
            idle |= set() if self.changed.get("lookup") else {*DRAFTING, "lookup"}
        return {name: value for name, value in self.changed.items() if name not in idle}


def candidates(job: TuningJob) -> list[Candidate]:
    """The defaults, then candidates with one change each, the most promising first."""
    defaults = job.defaults
    found = [defaults, *_drafts(job), *_guessing(job), *_threads(job)]
    return [
        one
        for at, one in enumerate(found)
        if one not in found[:at] and not one.settings(defaults).keys() & job.fixed
    ]


def _drafts(job: TuningJob) -> Iterator[Candidate]:
    yield from job.other_drafts
    for draft in job.drafts:
        for options in _on_gpu(job.load, draft).values():
            yield Candidate(draft, options)


def _guessing(job: TuningJob) -> Iterator[Candidate]:
    if draft := job.load.draft:
        yield Candidate(draft, {"no_overlap": not job.engine.no_overlap})
        yield Candidate(None, {"lookup": False})
        yield from (Candidate(draft, {"draft_max": n}) for n in DRAFT_MAXIMA)
        yield Candidate(draft, {"lookup": False})
    yield Candidate(None, {"lookup": True})


def _threads(job: TuningJob) -> Iterator[Candidate]:
    half = (job.load.threads or job.default_threads) // 2
    if half:
        yield Candidate(job.load.draft, {"threads": half})
        if job.load.draft:
            yield Candidate(job.load.draft, {"threads_draft": half})


def _on_gpu(load: LoadSettings, draft: Path) -> Mapping[str, dict[str, Any]]:
    """Options that place the draft on a GPU, by flag; empty without a GPU."""
    runtime = runtimes.find(draft)
    if runtime.gpu() is None:
        return {}
    n_layers, kind = runtimes.describe(draft).layers, declared().get(runtime.name)
    if not n_layers or kind is None:
        return {}
    options = kind.of(load.options.get(runtime.name))
    return {
        flag: {k: v for k, v in placed.model_dump().items() if v != getattr(options, k)}
        for flag, placed in options.draft_on_gpu(n_layers).items()
    }
