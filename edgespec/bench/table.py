"""Text output of a bench: a line for every run, and the final table. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from edgespec.bench.bench_report import BenchReport
from edgespec.bench.summary import FinishedRun, ModeSummary
from edgespec.errors import marked
from edgespec.reports import Column, Report, Row, Table
from edgespec.settings.units import format_duration, format_size

MB = 1e6


def run_line(row: FinishedRun, number: int, n_runs: int) -> str:
    """The line of a finished run, which fits into 80 columns; the report has its other figures."""
    run = row.decoded
    passes = f"{run.n_decoded / max(run.passes, 1):.2f} per pass"
    rate = f"{figure(run.tokens_per_s):>5} tokens/s"
    return f"{counter(number, n_runs)} {row.mode:<14} {row.prompt:<16} {rate}, {passes}"


def raw_line(bytes_per_s: float, number: int, n_runs: int, left_s: float) -> str:
    """The line of a finished read loop."""
    what = f"{bytes_per_s / MB:.0f} MB/s, plain direct reads"
    return f"{counter(number, n_runs)} {'raw':<14} {what}  {left(left_s)}"


def counter(number: int, n_runs: int) -> str:
    return f"[{number:>{len(str(n_runs))}}/{n_runs}]"


def left(left_s: float) -> str:
    return f"about {format_duration(left_s)} left" if left_s > 0 else ""


def token_counts(n_tokens: int, n_baseline_tokens: int) -> str:
    """A phrase about the length of the texts."""
    if n_baseline_tokens == n_tokens:
        return f"{n_tokens} tokens"
    return f"{n_tokens} tokens, {n_baseline_tokens} where a pass yields hardly more than one"


def counted(n: int, what: str) -> str:
    """Number and noun, with a plural: `1 prompt`, `3 prompts`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def figure(value: float) -> str:
    """The value with three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def summary(report: BenchReport) -> Report:
    """The final table, with settings and explanations."""
    raw = report.raw_bytes_per_s
    return Report(
        Row(format=[*setting_lines(report), ""]),
        Row(value=Table(columns(report.reference or ""), report.modes)),
        Row(
            format=f"raw: {raw.median / MB:.0f} MB/s ({raw.least / MB:.0f} - {raw.most / MB:.0f}) "
            "of plain direct reads\n"
        ),
        Row(format=[*source_lines(report), *reading_lines(report)]),
    )


def source_lines(report: BenchReport) -> list[str]:
    """Lines about accepted and verified guesses by source, for each mode."""
    return [
        f"{mode.name}: guesses accepted of those verified: "
        + ", ".join(f"{by.source} {by.accepted:,} of {by.verified:,}" for by in mode.sources)
        for mode in report.modes
        if mode.sources
    ]


def setting_lines(report: BenchReport) -> list[str]:
    """Lines about machine, models and limits."""
    machine = report.machine
    target = f"{report.target.file} ({format_size(report.target.size_bytes)})"
    drafts = "".join(
        f", draft {draft.file} ({format_size(draft.size_bytes)})" for draft in report.drafts
    )
    return [
        f"{machine.cpu}, {counted(machine.n_threads, 'thread')}; "
        f"{format_size(machine.memory_bytes)} of memory; {machine.system}",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        f"target {target}{drafts}",
        limit_line(report),
    ]


def limit_line(report: BenchReport) -> str:
    limits = report.limits
    if limits.method == "unlimited":
        line = "nothing was limited"
        if limits.budget_bytes is not None:
            line += f" from outside; edgespec's own budget {format_size(limits.budget_bytes)}"
        return line
    parts = []
    if limits.memory_bytes is not None:
        parts.append(f"memory {format_size(limits.memory_bytes)}")
    if limits.read_bytes_per_s is not None:
        parts.append(f"reads {limits.read_bytes_per_s / MB:.0f} MB/s")
    return f"each run bound to {' and '.join(parts)} by {limits.method}"


def reading_lines(report: BenchReport) -> list[str]:
    """Lines that explain the columns and list modes without results."""
    lines = [
        f"Medians of {counted(len(report.prompts), 'prompt')}, "
        f"{counted(report.n_repetitions, 'time')} each, {_temperatures(report)}; "
        f"{token_counts(report.n_tokens, report.n_baseline_tokens)}. Ratios are medians of pairs "
        "that ran one after the other.",
        "bound: tokens/s if a pass took no longer than reading its bytes as a plain loop does; "
        "share: how much of it was reached.",
    ]
    if report.reference:
        lines.append(
            f"agrees: tokens before the first difference to {report.reference}, of those compared; "
            "a batch and single tokens round differently, and near ties may fall either way."
        )
    lines += [f"{gone.mode}: left out, {marked(gone.reason)}" for gone in report.left_out]
    lines += [f"{failed.mode}: failed, {marked(failed.reason)}" for failed in report.failures]
    return lines + list(report.notes)


def _temperatures(report: BenchReport) -> str:
    """A phrase about the temperatures of all modes."""
    if report.sampling is None:
        return "greedy"
    warmth = f"{report.sampling['temperature']:g}"
    return f"greedy, and with @{warmth} at temperature {warmth} with the filters of `edgespec chat`"


def columns(reference: str, names: Collection[str] = ()) -> list[Column[ModeSummary]]:
    """Columns of the final table, all or those named; ratios are those to `reference`."""
    known: dict[str, Callable[[ModeSummary], str]] = {
        "mode": lambda mode: mode.name,
        "tokens/s": lambda mode: figure(mode.tokens_per_s.median),
        "least - most": lambda mode: (
            f"{figure(mode.tokens_per_s.least)} - {figure(mode.tokens_per_s.most)}"
        ),
        f"to {reference}": lambda mode: f"{mode.ratio.median:.2f}" if mode.ratio else "-",
        "per pass": lambda mode: f"{mode.tokens_per_pass:.2f}",
        "MiB/pass": lambda mode: f"{mode.pass_bytes / 2**20:.0f}",
        "MB/s": lambda mode: f"{mode.disk_bytes_per_s.median / MB:.0f}",
        "bound": lambda mode: figure(mode.bound_tokens_per_s) if mode.bound_tokens_per_s else "-",
        "share": lambda mode: f"{mode.share_of_bound:.0%}" if mode.share_of_bound else "-",
        "peak": lambda mode: format_size(mode.peak_bytes),
        "agrees": lambda mode: (
            f"{mode.agreement.tokens} of {mode.agreement.compared}" if mode.agreement else "-"
        ),
    }
    return [
        Column("", label, text, is_left=label in {"mode", "agrees"})
        for label, text in known.items()
        if not names or label in names
    ]
