"""Reports of measured pairs. Values in, rows out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.commands.generation_report import memory_report, sampling_line
from edgespec.reports import UNKNOWN, Column, Report, Row, Table, table_of

if TYPE_CHECKING:
    from edgespec.memory.budget import MemoryPlan
    from edgespec.models.pair_fit import PairFit, SourcesFit, TreeFit
    from edgespec.settings.config import SamplingParams
    from edgespec.values import SourceStats

MIN_USE = 1.1
"""Tokens per pass below which a draft does not help; without a draft it is 1."""


@dataclass(frozen=True, slots=True)
class SampledFit:
    """Measurements on texts that were sampled."""

    sampling: SamplingParams
    fit: PairFit


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair measured by `models check`."""

    target: Path
    fit: PairFit
    plan: MemoryPlan
    peak_bytes: int
    sampled: SampledFit | None = None

    @property
    def notes(self) -> list[str]:
        """Notes of the plan and of all texts, each once."""
        sampled = self.sampled.fit.notes if self.sampled else ()
        return list(dict.fromkeys((*self.plan.notes, *self.fit.notes, *sampled)))

    def report(self, draft: Path) -> Report:
        """Report of `models check`; `draft` is the draft's current path."""
        fit, sampled = self.fit, self.sampled
        title = f"The models form a pair. {_text_line(fit, 'greedily')}:"
        return Report(
            Row("target", self.target),
            Row("draft", draft),
            Row("prompts", fit.n_prompts, (title, "")),
            *_fit_rows(fit, "ranks first"),
            Row(format=_conclusion(fit)),
            Row("sampled", _sampled_report(sampled) if sampled else None),
            Row("memory", memory_report(self.plan, self.peak_bytes)),
            Row("notes", self.notes, [f"note: {note}" for note in self.notes]),
        )


_TREES: list[Column[TreeFit]] = [
    Column("drafted_nodes", "guesses"),
    Column("passes", "", lambda tree: tree.rounds),
    Column("verified_per_pass", "verified per pass", format="{:.1f}".format),
    Column("tokens_per_pass", "tokens per pass", format="{:.2f}".format),
]
_SOURCES: list[Column[SourceStats]] = [
    Column("source", "source", is_left=True),
    Column("verified", "verified"),
    Column("accepted", "accepted"),
]


def _fit_rows(fit: PairFit, how: str) -> list[Row]:
    """Agreement, and the tables of tree sizes and of sources."""
    share = f"{100 * fit.agreement:.1f} %" if fit.compared else UNKNOWN
    counts = f"{fit.agreed:,} of {fit.compared:,} tokens the draft {how}"
    agreement = {
        "top_1": fit.agreement if fit.compared else None,
        "compared": fit.compared,
        "agreed": fit.agreed,
    }
    return [
        Row("tokens", fit.n_tokens),
        Row("agreement", agreement, (f"top-1 agreement: {share} ({counts})", "")),
        Row("trees", Table(_TREES, fit.trees)),
        Row(format=""),
        Row("sources", sources_report(fit.together) if fit.together else None),
        Row("large_enough", fit.large_enough.drafted_nodes),
    ]


def _text_line(fit: PairFit, how: str) -> str:
    return f"{fit.n_tokens:,} tokens that the target wrote after {fit.n_prompts} prompts, {how}"


def _sampled_report(sampled: SampledFit) -> Report:
    title = _text_line(sampled.fit, f"sampled with {sampling_line(sampled.sampling)}")
    sampling = sampled.sampling.model_dump(exclude={"logit_bias"})
    return Report(
        Row("sampling", sampling, ("", f"{title}:", "")),
        *_fit_rows(sampled.fit, "draws by the same noise"),
    )


def sources_report(together: SourcesFit) -> Report:
    """Counts of all sources of guesses together."""
    title = (
        f"All sources of guesses together, {together.drafted_nodes} guesses per pass: "
        f"{together.tokens_per_pass:.2f} tokens per pass"
    )
    return Report(
        Row("drafted_nodes", together.drafted_nodes),
        Row("rounds", together.rounds),
        Row("tokens_per_pass", together.tokens_per_pass, (title, "")),
        Row("sources", Table(_SOURCES, together.sources)),
        Row(format=""),
    )


def drafters_report(
    fits: Mapping[str, PairFit],
    lookups: SourcesFit,
    left_out: Mapping[str, str],
    sampling: SamplingParams | None = None,
) -> Report:
    """Table of the drafts by name and of lookups alone, and reasons of drafts that cannot guess."""
    some = next(iter(fits.values()))
    sizes = [f"{tree.drafted_nodes}" for tree in some.trees]
    rows = []
    for name, fit in fits.items():
        yields = (f"{tree.tokens_per_pass:.2f}" for tree in fit.trees)
        assert fit.together is not None
        rows.append((name, f"{fit.agreement:.3f}", *yields, f"{fit.together.tokens_per_pass:.2f}"))
    rows.append(("lookups alone", "", *("" for _ in sizes), f"{lookups.tokens_per_pass:.2f}"))
    headings = ("draft", "top-1", *sizes, f"{lookups.drafted_nodes}, lookups too")
    notes = dict.fromkeys(note for fit in fits.values() for note in fit.notes)
    how = f"sampled with {sampling_line(sampling)}" if sampling else "greedily"
    title = f"Tokens per pass by guesses in a tree, of {_text_line(some, how)}:"
    return Report(
        Row(format=[title, ""]),
        Row(value=table_of(headings, rows)),
        Row(format=[f"{name}: left out, {reason}" for name, reason in left_out.items()]),
        Row(format=[f"note: {note}" for note in notes]),
    )


def _conclusion(fit: PairFit) -> str:
    """Conclusion about tree sizes from the tokens per pass, without the cost of a node."""
    most = max(tree.tokens_per_pass for tree in fit.trees)
    if most < MIN_USE:
        return (
            f"A pass yields {most:.2f} tokens at most: this draft does not help this target. "
            "Choose a better one of the same family, or make one with `edgespec models draft`."
        )
    enough, largest = fit.large_enough, fit.trees[-1]
    if enough is largest:
        return (
            f"Tokens per pass still grow at {largest.drafted_nodes} guesses: if passes wait for "
            f"storage, use --draft-max {largest.drafted_nodes}."
        )
    return (
        f"--draft-max {enough.drafted_nodes} is large enough: it yields "
        f"{100 * enough.tokens_per_pass / most:.0f} % of the most tokens per pass."
    )
