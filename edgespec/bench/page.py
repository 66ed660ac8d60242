"""The report of a bench as one HTML file that needs nothing else: no scripts, fonts or images."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edgespec.bench import charts, markup
from edgespec.bench.modes import ENGINE_MODES
from edgespec.bench.report import BenchReport
from edgespec.bench.summary import ModeSummary, Row
from edgespec.bench.table import MB, counted, figure, limit_line, reading_lines
from edgespec.units import format_size

MIB = 1 << 20
_OURS = frozenset(mode.name for mode in ENGINE_MODES)
_DEFAULT = "auto"


def html_page(report: BenchReport) -> str:
    """Well-formed as XML, too."""
    sections = [
        _header(report),
        _summary(report),
        _speed(report),
        _rounds(report),
        _lengths(report),
        _memory(report),
        _disk(report),
        _prompts(report),
        _setup(report),
    ]
    return markup.document(f"edgespec bench: {report.target.file}", sections)


def _header(report: BenchReport) -> str:
    """The one figure that a reader came for."""
    tiles = [(f"{report.raw_bytes_per_s.median / MB:.0f} MB/s", "plain direct reads")]
    best = max(report.modes, key=lambda mode: mode.tokens_per_s.median, default=None)
    chosen = next((mode for mode in report.modes if mode.name == _DEFAULT), best)
    if chosen is not None:
        if chosen.share_of_bound:
            share = f"{100 * chosen.share_of_bound:.0f} %"
            tiles.insert(0, (share, f"of what storage allows ({chosen.name})"))
        if chosen.ratio and chosen.name != report.reference:
            ratio = f"{chosen.ratio.median:.2f} times"
            tiles.insert(0, (ratio, f"{report.reference} ({chosen.name})"))
        rate = f"{figure(chosen.tokens_per_s.median)} tokens/s"
        tiles.insert(0, (rate, chosen.name))
    draft = f", draft {report.draft.file}" if report.draft else ""
    text = (
        f"{report.target.file} ({format_size(report.target.size_bytes)}){draft}; "
        f"{limit_line(report)}; {report.began}"
    )
    return markup.header("edgespec bench", text, tiles)


def _summary(report: BenchReport) -> str:
    head = [
        "mode", "tokens/s", "least - most", f"to {report.reference or ''}", "tokens/pass",
        "MiB/pass", "MB/s", "bound", "share", "peak", "agrees",
    ]  # fmt: skip
    body = []
    for mode in report.modes:
        rates, most = mode.tokens_per_s, mode.bound_tokens_per_s
        body.append(
            [
                mode.name,
                figure(rates.median),
                f"{figure(rates.least)} - {figure(rates.most)}",
                f"{mode.ratio.median:.2f}" if mode.ratio else "-",
                f"{mode.tokens_per_pass:.2f}",
                f"{mode.pass_bytes / MIB:.0f}",
                f"{mode.disk_bytes_per_s.median / MB:.0f}",
                figure(most) if most else "-",
                f"{100 * mode.share_of_bound:.0f} %" if mode.share_of_bound else "-",
                format_size(mode.peak_bytes),
                f"{mode.agreement.tokens} of {mode.agreement.compared}",
            ]
        )
    notes = "".join(f"<li>{escape(line)}</li>" for line in reading_lines(report))
    return markup.section("Figures", f'{markup.table(head, body)}<ul class="notes">{notes}</ul>')


def _speed(report: BenchReport) -> str:
    rows = [
        charts.Bar(
            mode.name,
            mode.tokens_per_s.median,
            mode.tokens_per_s.least,
            mode.tokens_per_s.most,
            figure(mode.tokens_per_s.median) + _times(report, mode),
            _kind(mode),
        )
        for mode in report.modes
    ]
    described = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in report.descriptions.items()
    )
    return markup.section(
        "Tokens per second",
        charts.bars(rows, "tokens/s") + f"<dl>{described}</dl>",
        f"Medians; whiskers from the slowest to the fastest run; times {report.reference}.",
    )


def _rounds(report: BenchReport) -> str:
    rows = []
    for mode in report.modes:
        mean = mode.round
        waits = "compute" if mode.name in _OURS else "mixed"
        parts = [
            charts.Part("draft", mean.draft_s),
            charts.Part("stall", mean.stall_s),
            charts.Part(waits, mean.compute_s),
            charts.Part("other", mean.other_s),
        ]
        rows.append(charts.Stack(mode.name, parts, f"{mean.total_s:.3f} s"))
    legend = markup.legend(
        ("draft", "draft, not hidden by the pass"),
        ("stall", "stall: the pass waits for weights"),
        ("compute", "compute"),
        ("mixed", "compute and page faults, which cannot be told apart"),
        ("other", "other"),
    )
    return markup.section(
        "Where a round's time goes",
        legend + charts.stacks(rows, "s"),
        "Seconds of a mean round: it drafts, makes a pass over the weights and accepts.",
    )


def _lengths(report: BenchReport) -> str:
    drafting = [mode for mode in report.modes if any(mode.accepted_lengths[1:])]
    if not drafting:
        return ""
    n_bins = max(len(mode.accepted_lengths) for mode in drafting)
    shares = {
        mode.name: [count / sum(mode.accepted_lengths) for count in mode.accepted_lengths]
        for mode in drafting
    }
    most = max(max(values) for values in shares.values())
    panels = [
        charts.histogram(
            charts.Panel(mode.name, f"{mode.tokens_per_pass:.2f} tokens per pass"),
            shares[mode.name],
            n_bins,
            most,
        )
        for mode in drafting
    ]
    return markup.section(
        "Accepted drafted tokens per round",
        f'<div class="panels">{"".join(panels)}</div>{_sources(report)}',
        "The target's own token comes on top of these.",
    )


def _sources(report: BenchReport) -> str:
    """Who guessed; runtimes' own modes do not tell."""
    body = [
        [
            mode.name,
            by.source,
            f"{by.verified:,}",
            f"{by.accepted:,}",
            f"{100 * by.accepted / by.verified:.0f} %" if by.verified else "-",
        ]
        for mode in report.modes
        for by in mode.sources
    ]
    head = ["mode", "who guessed", "verified", "stood", ""]
    return markup.table(head, body, words=2) if body else ""


def _memory(report: BenchReport) -> str:
    """Of each mode, its median run."""
    budget, bound = report.limits.budget_bytes, report.limits.memory_bytes
    runs = [row for mode in report.modes if (row := _median_row(report.rows, mode.name))]
    tops = [point[1] for row in runs for point in row.memory] + ([bound] if bound else [])
    if not tops:
        return ""
    panels = [
        charts.memory(
            charts.Series(
                charts.Panel(row.mode, f"peak {row.decoded.peak_bytes / MIB:.0f} MiB"),
                [(at, nbytes / MIB) for at, nbytes in row.memory],
                row.decoding_at_s,
            ),
            1.15 * max(tops) / MIB,
            _line("budget", budget) if row.mode in _OURS else _line("limit", bound),
        )
        for row in runs
    ]
    return markup.section(
        "Memory over time",
        f'<div class="panels">{"".join(panels)}</div>',
        "Resident MiB of the whole process. Mapped pages count: those of the model's file, and "
        "those of libraries, which a limit charges to whoever read them first. The dotted line is "
        "where decoding begins.",
    )


def _line(what: str, nbytes: int | None) -> tuple[float, str] | None:
    return None if nbytes is None else (nbytes / MIB, f"{what} {nbytes / MIB:.0f} MiB")


def _disk(report: BenchReport) -> str:
    raw = report.raw_bytes_per_s
    rows = []
    for mode in report.modes:
        rate = mode.disk_bytes_per_s
        if rate.median > 0:
            text = f"{rate.median / MB:.0f} · {100 * rate.median / raw.median:.0f} % of raw"
            rows.append(
                charts.Bar(
                    mode.name, rate.median / MB, rate.least / MB, rate.most / MB, text,
                    _kind(mode),
                )
            )  # fmt: skip
    if not rows:
        return ""
    line = (raw.median / MB, f"raw {raw.median / MB:.0f} MB/s")
    return markup.section(
        "Reads while decoding, against plain reads",
        charts.bars(rows, "MB/s", line),
        "Decimal megabytes a second of the time that decoding took. A pass that waits for nothing "
        "but storage reads as fast as the plain loop.",
    )


def _prompts(report: BenchReport) -> str:
    body = [
        [
            prompt.prompt,
            mode.name,
            figure(prompt.tokens_per_s.median),
            f"{figure(prompt.tokens_per_s.least)} - {figure(prompt.tokens_per_s.most)}",
            f"{prompt.tokens_per_pass:.2f}",
            f"{prompt.agreement.tokens} of {prompt.agreement.compared}",
        ]
        for name in report.prompts
        for mode in report.modes
        for prompt in mode.prompts
        if prompt.prompt == name
    ]
    head = ["prompt", "mode", "tokens/s", "least - most", "tokens/pass", "agrees"]
    return markup.section("By prompt", markup.table(head, body, words=2))


def _setup(report: BenchReport) -> str:
    machine = report.machine
    models = f"{report.target.file}, {report.target.size_bytes:,} bytes"
    if report.draft:
        models += f"; draft {report.draft.file}, {report.draft.size_bytes:,} bytes"
    facts = {
        "command": report.command,
        "versions": ", ".join(f"{name} {number}" for name, number in report.versions.items()),
        "models": models,
        "limits": limit_line(report),
        "processor": f"{machine.cpu}, {counted(machine.n_cpus, 'CPU')}; "
        f"each run computes with {counted(machine.n_threads, 'thread')}",
        "memory": format_size(machine.memory_bytes),
        "storage": machine.disk,
        "system": machine.system,
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()
    )
    return markup.section("Machine and command", f"<dl>{rows}</dl>")


def _times(report: BenchReport, mode: ModeSummary) -> str:
    if mode.ratio is None or mode.name == report.reference:
        return ""
    return f" · {mode.ratio.median:.2f} times"


def _kind(mode: ModeSummary) -> str:
    if mode.name == _DEFAULT:
        return "best"
    return "ours" if mode.name in _OURS else "theirs"


def _median_row(rows: Sequence[Row], mode: str) -> Row | None:
    of_mode = sorted(
        (row for row in rows if row.mode == mode), key=lambda row: row.decoded.tokens_per_s
    )
    return of_mode[len(of_mode) // 2] if of_mode else None
