"""Formats measurements of pairs, as JSON values and as text.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.commands.reports import memory_line, memory_report, sampling_line
from edgespec.tables import UNKNOWN, Column, Table, aligned

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

    def report(self, draft: Path) -> dict[str, Any]:
        """Report of `models check` as JSON values; `draft` is the draft's current path."""
        fit = self.fit
        return {
            "target": str(self.target),
            "draft": str(draft),
            "prompts": fit.n_prompts,
            **_fit_report(fit),
            "sampled": self._sampled_report(),
            "memory": memory_report(self.plan, self.peak_bytes),
            "notes": self.notes,
        }

    def table(self) -> list[str]:
        """Lines with the measured figures and the conclusion."""
        fit, sampled = self.fit, self.sampled
        return [
            f"The models form a pair. {_text_line(fit, 'greedily')}:",
            "",
            *_fit_lines(fit, "ranks first"),
            _conclusion(fit),
            *(_sampled_lines(sampled) if sampled else ()),
            memory_line(self.plan, self.peak_bytes),
            *(f"note: {note}" for note in self.notes),
        ]

    def _sampled_report(self) -> dict[str, Any] | None:
        if self.sampled is None:
            return None
        sampling = self.sampled.sampling.model_dump(exclude={"logit_bias"})
        return {"sampling": sampling, **_fit_report(self.sampled.fit)}


_TREES: list[Column[TreeFit]] = [
    Column("drafted_nodes", "guesses", lambda tree: tree.drafted_nodes),
    Column("passes", "", lambda tree: tree.rounds),
    Column(
        "verified_per_pass",
        "verified per pass",
        lambda tree: tree.verified_per_pass,
        lambda tree: f"{tree.verified_per_pass:.1f}",
    ),
    Column(
        "tokens_per_pass",
        "tokens per pass",
        lambda tree: tree.tokens_per_pass,
        lambda tree: f"{tree.tokens_per_pass:.2f}",
    ),
]
_SOURCES: list[Column[SourceStats]] = [
    Column("source", "source", lambda by: by.source, is_left=True),
    Column("verified", "verified", lambda by: by.verified),
    Column("accepted", "accepted", lambda by: by.accepted),
]


def _fit_report(fit: PairFit) -> dict[str, Any]:
    """Measurements on texts, as JSON values."""
    return {
        "tokens": fit.n_tokens,
        "agreement": {
            "top_1": fit.agreement if fit.compared else None,
            "compared": fit.compared,
            "agreed": fit.agreed,
        },
        "trees": Table(_TREES, fit.trees).as_list(),
        "sources": sources_report(fit.together) if fit.together else None,
        "large_enough": fit.large_enough.drafted_nodes,
    }


def _fit_lines(fit: PairFit, how: str) -> list[str]:
    """Agreement, and the tables of tree sizes and of sources."""
    share = f"{100 * fit.agreement:.1f} %" if fit.compared else UNKNOWN
    counts = f"{fit.agreed:,} of {fit.compared:,} tokens the draft {how}"
    lines = [f"top-1 agreement: {share} ({counts})", "", *Table(_TREES, fit.trees).lines(), ""]
    if (together := fit.together) is not None:
        lines += [
            f"All sources of guesses together, {together.drafted_nodes} guesses per pass: "
            f"{together.tokens_per_pass:.2f} tokens per pass",
            "",
            *Table(_SOURCES, together.sources).lines(),
            "",
        ]
    return lines


def _text_line(fit: PairFit, how: str) -> str:
    return f"{fit.n_tokens:,} tokens that the target wrote after {fit.n_prompts} prompts, {how}"


def _sampled_lines(sampled: SampledFit) -> list[str]:
    how = f"sampled with {sampling_line(sampled.sampling)}"
    lines = _fit_lines(sampled.fit, "draws by the same noise")
    return ["", f"{_text_line(sampled.fit, how)}:", "", *lines]


def sources_report(together: SourcesFit) -> dict[str, Any]:
    """Counts of all sources of guesses together, as JSON values."""
    return asdict(together) | {"tokens_per_pass": together.tokens_per_pass}


def drafters_table(
    fits: Mapping[str, PairFit],
    lookups: SourcesFit,
    left_out: Mapping[str, str],
    sampling: SamplingParams | None = None,
    width: int | None = None,
) -> list[str]:
    """Table of the drafts by name and of lookups alone, and reasons of drafts that cannot guess."""
    some = next(iter(fits.values()))
    sizes = [tree.drafted_nodes for tree in some.trees]
    n_together = lookups.drafted_nodes
    rows = [("draft", "top-1", *(f"{size}" for size in sizes), f"{n_together}, lookups too")]
    for name, fit in fits.items():
        yields = (f"{tree.tokens_per_pass:.2f}" for tree in fit.trees)
        assert fit.together is not None
        rows.append((name, f"{fit.agreement:.3f}", *yields, f"{fit.together.tokens_per_pass:.2f}"))
    rows.append(("lookups alone", "", *("" for _ in sizes), f"{lookups.tokens_per_pass:.2f}"))
    notes = dict.fromkeys(note for fit in fits.values() for note in fit.notes)
    how = f"sampled with {sampling_line(sampling)}" if sampling else "greedily"
    return [
        f"Tokens per pass by guesses in a tree, of {_text_line(some, how)}:",
        "",
        *aligned(rows, [name == 0 for name in range(len(rows[0]))], width),
        *(f"{name}: left out, {reason}" for name, reason in left_out.items()),
        *(f"note: {note}" for note in notes),
    ]


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
