"""`edgespec models check`: measures drafts on texts of their target.

Commands that make drafts measure them as this one does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import Field

from edgespec.cli.commands.generation_report import memory_report, sampling_line
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.invocation import measured_sampling, read_prompts
from edgespec.errors import BudgetError, EdgespecError, ModelError
from edgespec.models import catalogue
from edgespec.reports import UNKNOWN, Column, Report, Row, Table
from edgespec.settings.base import Flag, Settings
from edgespec.settings.config import AtLeastOne, GenerateSettings, LoadSettings, SamplingParams

if TYPE_CHECKING:
    from edgespec.memory.budget import MemoryPlan
    from edgespec.models.pair_fit import PairFit, SourcesFit
    from edgespec.ports import Progress, Vocabulary
    from edgespec.settings.config import SamplingParams
    from edgespec.values import SourceStats


GREEDY = SamplingParams()
Prompts: TypeAlias = Sequence[str | Sequence[int]]


class CheckSettings(Settings):
    """Settings of commands that measure a draft."""

    temperature: Annotated[float | None, Flag(metavar="T"), Field(ge=0)] = None
    """Measure at this temperature, too, with the filters of `edgespec chat`; 0: greedy texts alone,
    in half of the time. Default: what chat uses: the model's own, otherwise 0.8."""
    prompts: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of prompts: one a line, or in .jsonl an object's `prompt`. Default: 20 beginnings of
    Python code."""
    max_tokens: Annotated[AtLeastOne, Flag(metavar="N", short="-n")] = 64
    """Most tokens of each text."""


_CHECK = """\
Check whether DRAFT can draft for TARGET, and measure how well.

Two models form a pair if they have the same tokens: `models show` prints the same vocabulary
fingerprint for both. Otherwise this ends with exit code 3 and the first token that differs.

The target continues some prompts greedily, and once more as `edgespec chat` samples (--temp), with
16 guesses a pass:

  top-1 agreement   share of the target's tokens that the draft ranks first, or draws by the same
                    noise, given the target's text before them
  tokens per pass   mean tokens from one pass over the target's weights: the accepted guesses and
                    one token of the target's own
  source            for each source of guesses (the draft, the text itself, the target's own
                    words) the number verified and accepted

Several drafts are compared in one table; TARGET itself stands for its own layer (MTP). One that
cannot guess for TARGET is left out, with the reason.

These figures depend on the prompts, so use prompts like yours, and not on the machine: `edgespec
bench` with the same -md measures seconds and memory."""

_CHECK_EXAMPLES = """\
examples:
  edgespec models check target draft
  edgespec models check big.gguf small.gguf --prompts questions.txt -n 128 --memory-budget 4GiB
  edgespec models check big.gguf small.gguf head.gguf      (which of them guesses best)
  edgespec models check big.gguf small.gguf --temp 0       (greedy texts alone)"""


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = _CHECK
    parser.epilog = _CHECK_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="the big model, a name or a path")
    parser.add_argument(
        "draft",
        metavar="DRAFT",
        nargs="+",
        help="the small model, a name or a path; several are compared in one table",
    )
    groups.add(parser, CheckSettings, "temperature")
    add_measuring(parser)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Flags of commands that compare a draft with texts written by the target."""
    groups.add(parser, CheckSettings, "prompts", "max_tokens")
    groups.add(parser, LoadSettings, "memory_budget", "ctx_size", "threads")
    groups.add_plain_output(parser)


def run_check(args: argparse.Namespace, console: Console) -> None:
    target = catalogue.find(args.target)
    drafts = list(dict.fromkeys(catalogue.find(name) for name in args.draft))
    prompts = read_prompts(groups.given(args, CheckSettings).prompts)
    sampling = measured_sampling(target, groups.given(args, GenerateSettings))
    if len(drafts) > 1:
        _compare(args, target, drafts, prompts, console, sampling)
        return
    (draft,) = drafts
    only = measured(args, target, draft, prompts, console, sampling)
    console.result(args, only.report(draft))


def _compare(
    args: argparse.Namespace,
    target: Path,
    drafts: Sequence[Path],
    prompts: Prompts,
    console: Console,
    sampling: SamplingParams,
) -> None:
    """Compare several drafts. Raises the first draft's error if none works."""
    from edgespec.models.model_files import distinct_names

    pairs: dict[Path, MeasuredPair] = {}
    failures: dict[Path, EdgespecError] = {}
    for draft in drafts:
        try:
            pairs[draft] = measured(args, target, draft, prompts, console, sampling)
        except (ModelError, BudgetError) as error:
            failures[draft] = error
    if not pairs:
        raise next(iter(failures.values()))
    names = dict(zip(drafts, distinct_names(drafts), strict=True))
    reasons = {names[draft]: str(error) for draft, error in failures.items()}
    fits = {names[draft]: pair.fit for draft, pair in pairs.items()}
    sampled = {names[draft]: pair.sampled.fit for draft, pair in pairs.items() if pair.sampled}
    report = Report(
        Row(value=drafters_report(fits, reasons)),
        Row(format=[""] if sampled else []),
        Row(value=drafters_report(sampled, {}, sampling) if sampled else Report()),
        Row("drafts", [pair.report(draft) for draft, pair in pairs.items()]),
        Row("left_out", [{"draft": d, "reason": str(error)} for d, error in failures.items()]),
    )
    console.result(args, report)


def measured(
    args: argparse.Namespace,
    target: Path,
    draft: Path,
    prompts: Prompts,
    console: Console,
    sampling: SamplingParams = GREEDY,
) -> MeasuredPair:
    """Measure the pair on `prompts`, which are texts or tokens: greedily, and by `sampling`."""
    from edgespec.memory import process
    from edgespec.models import pair_fit
    from edgespec.session import session

    settings = load_settings(args, target, draft)
    n_tokens = groups.given(args, CheckSettings).max_tokens
    with session.open_models(settings, pair_fit.LOADED_FOR, console.progress) as models:
        if models.draft is None:
            raise ModelError("; ".join(models.plan.notes))
        tokens = _encoded(models.target.vocabulary, prompts)
        fit, *sampled = (
            pair_fit.measure(models.target, models.draft, tokens, n_tokens, show, each)
            for each, show in _at_temperatures(sampling, console)
        )
        peak_bytes = process.peak_rss_bytes()
        at_temperature = SampledFit(sampling, sampled[0]) if sampled else None
        return MeasuredPair(target, fit, models.plan, peak_bytes, at_temperature)


def _at_temperatures(
    sampling: SamplingParams, console: Console
) -> Iterator[tuple[SamplingParams, Progress]]:
    """Greedy decoding and `sampling`, if that is another, each with a display of progress."""
    yield GREEDY, console.progress_with_rest
    if sampling.temperature:
        suffix = f" at temperature {sampling.temperature:g}"
        yield (
            sampling,
            lambda what, share: console.progress_with_rest(what + suffix, share),
        )


def _encoded(vocabulary: Vocabulary, prompts: Prompts) -> list[list[int]]:
    return [vocabulary.encode(text) if isinstance(text, str) else list(text) for text in prompts]


def load_settings(
    args: argparse.Namespace, target: Path, draft: Path | None = None
) -> LoadSettings:
    """Settings for loading these models, with the flags' values."""
    return groups.given(args, LoadSettings, model=target, draft=draft)


MIN_USE = 0.1
"""Accepted guesses in a pass below which a draft does not help."""


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
            Row(format=_advice(fit.together)),
            Row("sampled", _sampled_report(sampled) if sampled else None),
            Row("memory", memory_report(self.plan, self.peak_bytes)),
            Row("notes", self.notes, [f"note: {note}" for note in self.notes]),
        )


_SOURCES: list[Column[SourceStats]] = [
    Column("source", "source", is_left=True),
    Column("verified", "verified"),
    Column("accepted", "accepted"),
]
_DRAFTERS: list[Column[tuple[str, PairFit]]] = [
    Column("", "draft", lambda row: row[0], is_left=True),
    Column("", "top-1", lambda row: f"{row[1].agreement:.3f}"),
    Column("", "draft's guesses per pass", lambda row: f"{row[1].together.of_draft:.2f}"),
    Column("", "tokens per pass, all", lambda row: f"{row[1].together.tokens_per_pass:.2f}"),
]


def _fit_rows(fit: PairFit, how: str) -> list[Row]:
    """Agreement, and the table of sources."""
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
        Row("sources", sources_report(fit.together)),
    ]


def _text_line(fit: PairFit, how: str) -> str:
    return f"{fit.n_tokens:,} tokens that the target wrote after {fit.n_prompts} prompts, {how}"


def _sampled_report(sampled: SampledFit) -> Report:
    title = _text_line(sampled.fit, f"sampled with {sampling_line(sampled.sampling)}")
    sampling = sampled.sampling.model_dump(exclude={"logit_bias"})
    return Report(
        Row("sampling", sampling, (f"{title}:", "")),
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
    left_out: Mapping[str, str],
    sampling: SamplingParams | None = None,
) -> Report:
    """Table of the drafts by name, and reasons of drafts that cannot guess."""
    some = next(iter(fits.values()))
    notes = dict.fromkeys(note for fit in fits.values() for note in fit.notes)
    how = f"sampled with {sampling_line(sampling)}" if sampling else "greedily"
    title = f"{some.together.drafted_nodes} guesses per pass, {_text_line(some, how)}:"
    return Report(
        Row(format=[title, ""]),
        Row(value=Table(_DRAFTERS, list(fits.items()))),
        Row(format=[f"{name}: left out, {reason}" for name, reason in left_out.items()]),
        Row(format=[f"note: {note}" for note in notes]),
    )


def _advice(together: SourcesFit) -> list[str]:
    """Advice about a draft that does not help."""
    if together.of_draft >= MIN_USE:
        return []
    return [
        f"A pass accepts {together.of_draft:.2f} of its guesses: this draft does not help this "
        "target. Choose a better one of the same family, or make one with `edgespec models draft`.",
        "",
    ]
