"""The settings that `tune` lets compete; none of them changes the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgespec import runtimes
from edgespec.engine.settings import EngineSettings
from edgespec.settings.config import ABOUT_THE_DRAFT, LoadSettings
from edgespec.settings.options import declared, option_names

DRAFT_MAXIMA = (8, 24, 48)
"""Largest trees that compete with the one that the plan chooses."""


@dataclass(frozen=True, slots=True)
class TuningJob:
    """The models and settings that are tuned, and what the user has fixed."""

    load: LoadSettings
    """Settings of loading, with the first of the drafts."""
    engine: EngineSettings
    drafts: tuple[Path, ...]
    """Drafts that compete, however short the time."""
    default_threads: int
    fixed: frozenset[str] = frozenset()
    """Names of settings that the user gave: they stay."""

    def beginning_with(self, draft: Path | None) -> TuningJob:
        """The job whose defaults have this draft, or none."""
        values = without_draft(self.load) if draft is None else self.load.as_given()
        chosen = {} if draft is None else {"draft": draft}
        return replace(self, load=LoadSettings.model_validate(values | chosen))

    @property
    def other_drafts(self) -> list[Candidate]:
        """The defaults with each of the other drafts."""
        others = (draft for draft in self.drafts if draft != self.load.draft)
        return [replace(self.defaults, draft=draft) for draft in others]

    @property
    def defaults(self) -> Candidate:
        """The settings of an untuned run."""
        return Candidate(
            draft=self.load.draft,
            threads=self.load.threads or self.default_threads,
            threads_draft=self.load.threads_draft,
            draft_max=self.engine.draft_max if self.engine.pins_draft_max else None,
            overlap=self.engine.overlap,
            lookup=self.engine.lookup,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination of settings."""

    draft: Path | None
    threads: int
    threads_draft: int | None = None
    draft_max: int | None = None
    """None: the plan's choice."""
    overlap: bool = True
    lookup: bool | None = None
    """None: only beside a draft."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of a runtime that place the draft on a GPU."""

    @property
    def guesses(self) -> bool:
        return self.draft is not None or bool(self.lookup)

    def load(self, settings: LoadSettings) -> LoadSettings:
        """`settings` with this candidate's models, threads and options."""
        values = without_draft(settings) if self.draft is None else settings.as_given()
        values |= {"threads": self.threads}
        if self.draft is not None:
            values |= {"draft": self.draft, "threads_draft": self.threads_draft}
            values |= dict(self.options)
        return LoadSettings.model_validate(values)

    def engine(self, settings: EngineSettings) -> EngineSettings:
        """`settings` with this candidate's; runs remember nothing, so that all begin alike."""
        return replace(
            settings,
            draft_max=self.draft_max or EngineSettings().draft_max,
            pins_draft_max=self.draft_max is not None,
            overlap=self.overlap,
            lookup=self.lookup,
            remember=False,
        )

    def settings(self, defaults: Candidate) -> dict[str, Any]:
        """The settings that differ from the defaults, by their names in a preset."""
        changed: dict[str, Any] = {}
        if self.draft != defaults.draft:
            changed |= {"no_draft": True} if self.draft is None else {"draft": self.draft}
        for name in ("threads", "lookup"):
            if getattr(self, name) != getattr(defaults, name):
                changed[name] = getattr(self, name)
        if self.draft is not None and self.threads_draft != defaults.threads_draft:
            changed["threads_draft"] = self.threads_draft
        if self.guesses and self.draft_max != defaults.draft_max:
            changed["draft_max"] = self.draft_max
        if self.guesses and self.overlap != defaults.overlap:
            changed["no_overlap"] = not self.overlap
        return changed | dict(self.options)

    def combined(self, other: Candidate, defaults: Candidate) -> Candidate:
        """The candidate with the settings in which `other` differs from the defaults."""
        fields = Candidate.__dataclass_fields__
        changed = {
            name: getattr(other, name)
            for name in fields
            if getattr(other, name) != getattr(defaults, name)
        }
        return replace(self, **changed)


def candidates(job: TuningJob) -> list[Candidate]:
    """The defaults first, then the most promising first, each with one thing changed."""
    defaults = job.defaults
    found = [
        defaults,
        *_drafts(job, defaults),
        *_guessing(defaults),
        *_threads(job, defaults),
    ]
    allowed = [one for one in found if not one.settings(defaults).keys() & job.fixed]
    return list(dict.fromkeys(allowed))


def _drafts(job: TuningJob, defaults: Candidate) -> Iterator[Candidate]:
    yield from job.other_drafts
    for draft in job.drafts:
        for options in _on_gpu(job.load, draft).values():
            yield replace(defaults, draft=draft, options=tuple(options.items()))


def _guessing(defaults: Candidate) -> Iterator[Candidate]:
    alone = replace(defaults, draft=None, threads_draft=None)
    if defaults.draft is not None:
        yield replace(defaults, overlap=not defaults.overlap)
        yield alone
        yield from (replace(defaults, draft_max=n) for n in DRAFT_MAXIMA)
        yield replace(defaults, lookup=False)
    yield replace(alone, lookup=True)


def _threads(job: TuningJob, defaults: Candidate) -> Iterator[Candidate]:
    if defaults.threads > 1:
        half = defaults.threads // 2
        yield replace(defaults, threads=half)
        if defaults.draft is not None:
            yield replace(defaults, threads_draft=half)


def _on_gpu(load: LoadSettings, draft: Path) -> Mapping[str, dict[str, Any]]:
    """Options with which a GPU computes the draft, by the flag that says so; none without a GPU."""
    runtime = runtimes.find(draft)
    if not isinstance(runtime, runtimes.OffersGpu) or runtime.gpu() is None:
        return {}
    n_layers, kind = runtimes.describe(draft).layers, declared().get(runtime.name)
    if not n_layers or kind is None:
        return {}
    options = kind.of(load.options.get(runtime.name))
    return {
        flag: {k: v for k, v in placed.model_dump().items() if v != getattr(options, k)}
        for flag, placed in options.draft_on_gpu(n_layers).items()
    }


def without_draft(settings: LoadSettings) -> dict[str, Any]:
    """The settings that were given, without those about a draft."""
    dropped = {"draft", *ABOUT_THE_DRAFT, *option_names("draft")}
    return {name: value for name, value in settings.as_given().items() if name not in dropped}
