"""Summarises runs: medians, paired ratios, and the bound set by storage.

Values in, values out: it measures and prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from edgespec.bench.modes import Mode
from edgespec.bench.runs import Decoded
from edgespec.values import SourceStats, total_sources


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of some values."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One finished run. Runs with the same prompt and repetition ran one after the other."""

    mode: str
    prompt: str
    repetition: int
    decoded: Decoded
    draft: str | None = None
    """Name of the draft that guessed."""


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """Tokens before the first difference of two texts, and the number compared."""

    tokens: int
    compared: int


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """Results of one mode over all prompts and repetitions."""

    name: str
    n_runs: int
    n_tokens: int
    """Tokens of the longest run."""
    tokens_per_s: Spread
    ratio: Spread | None
    """Speed relative to `reference`'s run on the same prompt in the same repetition."""
    tokens_per_pass: float
    pass_bytes: float
    """Mean bytes read from storage in a pass."""
    disk_bytes_per_s: Spread
    bound_tokens_per_s: float | None
    """Speed if passes took only as long as raw reads of their bytes; None if nothing is read."""
    share_of_bound: float | None
    load_s: float
    prompt_s: float
    peak_bytes: int
    agreement: TextAgreement | None
    """Agreement with the texts of `text_reference`; None if this mode draws other texts."""
    sources: tuple[SourceStats, ...] = ()
    """Counts by source of guesses in all runs; empty for baselines."""
    draft: str | None = None
    """Name of the draft that guessed."""
    reference: str = ""
    """Mode of the same temperature that this one is compared with."""
    text_reference: str = ""
    temperature: float = 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of `values`, which must not be empty."""
    return Spread(statistics.median(values), min(values), max(values))


def agreement(tokens: Sequence[int], reference: Sequence[int]) -> TextAgreement:
    """Agreement over the length of the shorter text."""
    compared = min(len(tokens), len(reference))
    same = next(
        (n for n, (a, b) in enumerate(zip(tokens, reference, strict=False)) if a != b), compared
    )
    return TextAgreement(same, compared)


def bound(raw_bytes_per_s: float, pass_bytes: float, tokens_per_pass: float) -> float | None:
    """Tokens per second if a pass took only as long as raw reads of its bytes; None if none."""
    if pass_bytes <= 0 or not raw_bytes_per_s:
        return None
    return tokens_per_pass * raw_bytes_per_s / pass_bytes


def summaries(
    rows: Sequence[FinishedRun], modes: Sequence[Mode], raw_bytes_per_s: float
) -> tuple[ModeSummary, ...]:
    """Summaries of `modes`, which are compared at the same temperature.

    A library draws with random numbers of its own, so that only greedy texts are also the engine's.
    """
    return tuple(
        summary
        for temperature in dict.fromkeys(mode.temperature for mode in modes)
        for group in [[mode for mode in modes if mode.temperature == temperature]]
        for summary in summarise(
            rows,
            [mode.name for mode in group],
            raw_bytes_per_s,
            temperature,
            [mode.name for mode in group if not temperature or mode.engine is not None],
        )
    )


def summarise(
    rows: Sequence[FinishedRun],
    modes: Sequence[str],
    raw_bytes_per_s: float,
    temperature: float = 0.0,
    alike: Collection[str] | None = None,
) -> tuple[ModeSummary, ...]:
    """A summary for each mode that has rows; the first one is the reference.

    The texts of the modes `alike`, by default of all, are compared with those of the first of them.
    """
    present = [mode for mode in modes if any(row.mode == mode for row in rows)]
    comparable = [mode for mode in present if alike is None or mode in alike]

    def runs(mode: str) -> _Reference:
        return {(row.prompt, row.repetition): row.decoded for row in rows if row.mode == mode}

    found = []
    for mode in present:
        its_rows = [row for row in rows if row.mode == mode]
        summary = _summarise(its_rows, runs(present[0]), raw_bytes_per_s)
        summary = replace(summary, reference=present[0], temperature=temperature)
        if mode in comparable:
            agrees = _agreement(its_rows, runs(comparable[0]))
            summary = replace(summary, agreement=agrees, text_reference=comparable[0])
        found.append(summary)
    return tuple(found)


_Reference = dict[tuple[str, int], Decoded]


def _summarise(
    rows: Sequence[FinishedRun], reference: _Reference, raw_bytes_per_s: float
) -> ModeSummary:
    """The summary of a mode without its agreement."""
    runs = [row.decoded for row in rows]
    n_tokens, n_passes = sum(run.n_decoded for run in runs), sum(run.passes for run in runs)
    tokens_per_pass = n_tokens / max(n_passes, 1)
    pass_bytes = sum(run.bytes_read for run in runs) / max(n_passes, 1)
    rates = spread([run.tokens_per_s for run in runs])
    most = bound(raw_bytes_per_s, pass_bytes, tokens_per_pass)
    mean_rate = _rate(n_tokens, sum(run.decode_s for run in runs))
    return ModeSummary(
        name=rows[0].mode,
        n_runs=len(rows),
        n_tokens=max(len(run.tokens) for run in runs),
        tokens_per_s=rates,
        ratio=_ratio(rows, reference),
        tokens_per_pass=tokens_per_pass,
        pass_bytes=pass_bytes,
        disk_bytes_per_s=spread([_rate(run.bytes_read, run.decode_s) for run in runs]),
        bound_tokens_per_s=most,
        # the bound is for the mean pass, so it is compared with the mean rate
        share_of_bound=mean_rate / most if most else None,
        load_s=statistics.median(run.load_s for run in runs),
        prompt_s=statistics.median(run.prompt_s for run in runs),
        peak_bytes=max(run.peak_bytes for run in runs),
        agreement=None,
        sources=total_sources(run.sources for run in runs),
        draft=rows[0].draft,
    )


def _ratio(rows: Sequence[FinishedRun], reference: _Reference) -> Spread | None:
    """Ratios to the reference's paired runs, so that drift between repetitions cancels out."""
    ratios = [
        row.decoded.tokens_per_s / other.tokens_per_s
        for row in rows
        if (other := reference.get((row.prompt, row.repetition))) and other.tokens_per_s
    ]
    return spread(ratios) if ratios else None


def _agreement(rows: Sequence[FinishedRun], reference: _Reference) -> TextAgreement:
    """Agreement summed over the runs that have a reference."""
    found = [
        agreement(row.decoded.tokens, other.tokens)
        for row in rows
        if (other := reference.get((row.prompt, row.repetition)))
    ]
    return TextAgreement(sum(a.tokens for a in found), sum(a.compared for a in found))


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
