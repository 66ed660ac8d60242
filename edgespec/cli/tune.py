"""`edgespec tune`: measures this device and pair, finds the best settings, leaves a preset.

It decides what is asked and says what came out; measuring and searching are elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path

from edgespec import runtimes
from edgespec.bench import limits
from edgespec.cli.console import Console
from edgespec.cli.doctor import lever_lines, measured_outlook
from edgespec.cli.flags import installed_version
from edgespec.cli.invocation import (
    engine_settings,
    model_path,
    read_prompts,
    settings_from,
    spelled,
)
from edgespec.cli.tune_flags import N_PROMPTS, SECONDS
from edgespec.diagnosis.levers import Lever, Outlook
from edgespec.errors import UsageError
from edgespec.memory import process
from edgespec.models.embedded import shipped_prompts
from edgespec.settings import spell
from edgespec.tuning import curve, curve_page, kept_speeds, measured_report, presets, report
from edgespec.tuning.drawing import draw
from edgespec.tuning.laboratory import Laboratory
from edgespec.tuning.measuring import Wanted
from edgespec.tuning.presets import TUNED
from edgespec.tuning.search import Tuned, tune
from edgespec.units import parse_rate, parse_size

LEAST_SECONDS = 10
WORTH_SAYING = 1.01
"""Times what the chosen settings had."""


def run(given: argparse.Namespace) -> None:
    """Measure, say what was found, keep it. Raises what a command raises."""
    console = Console(quiet="quiet" in given)
    if "budgets" in given:
        _draw(given, console)
        return
    if "html" in given:
        raise UsageError("--html is of --budgets: give these, or leave it out")
    wanted, prompts = wanted_from(given, console)
    out = Path(given.out) if "out" in given else presets.place(wanted.load)
    presets.check_place(out)
    laboratory = _laboratory(given, wanted, prompts, console)
    say = partial(console.note) if "json" not in given else _silent
    tuned = tune(laboratory, wanted, say)
    found = measured_outlook(laboratory, tuned.measured)
    console.end_of_progress()
    if "out" not in given and tuned.chosen.draft is not None:
        out = presets.place(tuned.chosen.load(wanted.load))  # of the pair with the better draft
    tried = _tried_levers(tuned)
    helps = _helps(tuned, found, tried)
    text = presets.toml(report.preset_settings(tuned), [*_reasons(tuned), *helps])
    if "json" in given:
        levers = [asdict(lever) for lever in (*found.levers, *tried)]
        console.json(report.as_dict(tuned) | {"preset": str(out), "levers": levers})
    else:
        console.write("\n".join(["", *report.lines(tuned), *helps]))
    presets.save(text, out)
    kept_speeds.keep(tuned.measured, tuned.confirmed, _bound(given))
    console.note(f"preset: {out}")


def _draw(given: argparse.Namespace, console: Console) -> None:
    """`--budgets`: the curve instead of a preset."""
    for name in ("memory_budget", "out"):
        if name in given:
            raise UsageError(f"{spell(name)} has no place beside --budgets: leave it out")
    budgets = budgets_from(given.budgets)
    html = Path(given.html) if "html" in given else None
    if html is not None:
        presets.check_place(html, "--html")
    command = spelled(given)
    wanted, prompts = wanted_from(given, console)
    laboratory = _laboratory(given, wanted, prompts, console)
    say = _silent if "json" in given else console.note
    drawn = draw(laboratory, wanted, budgets, say)
    kept_speeds.keep(drawn.measured, bound_bytes_per_s=_bound(given))
    console.end_of_progress()
    if html is not None:
        presets.save(curve_page.html(drawn, command), html, "--html")
    if "json" in given:
        console.json(curve.as_dict(drawn))
    else:
        console.write("\n".join(["", *curve_page.table(drawn)]))
    if html is not None:
        console.note(f"page: {html}")


def budgets_from(text: str) -> list[int]:
    """Bytes of each size in a list with commas. Raises UsageError."""
    total = process.total_bytes()
    sizes = [part.strip() for part in text.split(",") if part.strip()]
    if not sizes:
        raise UsageError("--budgets is empty: write sizes with commas, like 2GiB,4GiB,8GiB")
    return [parse_size(size, total, f"--budgets {text}") for size in sizes]


def wanted_from(given: argparse.Namespace, console: Console) -> tuple[Wanted, tuple[str, ...]]:
    """What is tuned, on which prompts. Raises UsageError and ModelError."""
    drafts = list(dict.fromkeys(getattr(given, "draft", [])))
    if drafts:
        given.draft = drafts[0]
    given.no_tuned = True  # what is to be found is not to be read
    prompts = read_prompts(Path(given.prompts) if "prompts" in given else shipped_prompts())
    request = settings_from(given)
    for note in request.notes:
        console.note(note)
    load = request.load
    others = [model_path(draft, "--model-draft") for draft in drafts[1:]]
    for path in (load.model, *([load.draft] if load.draft else ()), *others):
        runtimes.find(path)
    settled = (load.model_fields_set | request.generate.model_fields_set) & TUNED
    wanted = Wanted(
        load=load,
        engine=engine_settings(request.generate),
        drafts=(*([load.draft] if load.draft else ()), *others),
        usual_threads=process.usable_cores(),
        settled=frozenset(settled),
    )
    return wanted, tuple(prompts[:N_PROMPTS])


def _laboratory(
    given: argparse.Namespace, wanted: Wanted, prompts: tuple[str, ...], console: Console
) -> Laboratory:
    limiter = limits.UNLIMITED
    if "disk_bandwidth" in given:
        asked = limits.Limits(read_bytes_per_s=parse_rate(given.disk_bandwidth))
        limiter, reasons = limits.find(asked, wanted.load.model)
        if limiter is limits.UNLIMITED:
            raise UsageError(
                f"--disk-bandwidth: reads cannot be limited here ({'; '.join(reasons)}): "
                "leave it out, or try sudo"
            )
    return Laboratory(
        wanted.load.model,
        prompts,
        seconds_from(given),
        limiter,
        partial(console.progress_with_rest, "tuning"),
    )


def _bound(given: argparse.Namespace) -> float:
    """Bytes a second that the disk may read."""
    return parse_rate(given.disk_bandwidth) if "disk_bandwidth" in given else inf


def seconds_from(given: argparse.Namespace) -> float:
    text = getattr(given, "seconds", str(SECONDS))
    try:
        seconds = float(text)
    except ValueError as error:
        raise UsageError(f"--seconds {text}: write a number such as {SECONDS}") from error
    if not LEAST_SECONDS <= seconds <= 1e5:
        raise UsageError(f"--seconds {text}: measuring takes {LEAST_SECONDS} seconds at least")
    return seconds


def _tried_levers(tuned: Tuned) -> list[Lever]:
    """Layers of the target on a GPU that were faster in a run."""
    now = tuned.best.tokens_per_s
    found = [
        Lever(f"{share.says}, which changes the text", share.tokens_per_s, measured=True)
        for share in tuned.gpu_shares
        if share.tokens_per_s > WORTH_SAYING * now
    ]
    return sorted(found, key=lambda lever: -(lever.tokens_per_s or 0.0))


def _helps(tuned: Tuned, found: Outlook, tried: Sequence[Lever]) -> list[str]:
    """What was not chosen and would help: another machine, or other texts."""
    lines = measured_report.read_advice(tuned.measured.reads)
    if found.levers:
        now = f"{found.tokens_per_s:.2f}" if found.tokens_per_s else "?"
        lines += [f"What would help, predicted, to {now} now:", *lever_lines(found.levers)]
    if tried:
        now = f"{tuned.best.tokens_per_s:.2f}"
        lines += [f"What would help, measured, to {now} with these settings:", *lever_lines(tried)]
    return lines


def _reasons(tuned: Tuned) -> Sequence[str]:
    when = datetime.now().astimezone().isoformat(timespec="minutes")
    return report.preset_reasons(tuned, when, installed_version())


def _silent(text: str) -> None:
    """Programs get one object."""
