"""Says what tuning found: lines for people, an object for programs, and the comments of a preset.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from edgespec import theory
from edgespec.bench.other_work import TOO_MUCH
from edgespec.engine.settings import EngineSettings
from edgespec.tuning import gpu_report
from edgespec.tuning.cost_model import Choice, Prediction, without_draft
from edgespec.tuning.measurements import ReadSpeed, Replayed, Written
from edgespec.tuning.measuring import Measured
from edgespec.tuning.search import Trial, Tuned, gain_of
from edgespec.units import format_rate, format_size

MS = 1e3
LINE = 8
"""Guesses, for comparison with a tree of as many."""


def preset_settings(tuned: Tuned) -> dict[str, Any]:
    """What the preset says, by the settings' names: models, budget and what differs from the
    defaults."""
    load, chosen, usual = tuned.wanted.load, tuned.chosen, tuned.wanted.usual
    settings: dict[str, Any] = {"model": load.model.resolve()}
    if chosen.draft is not None:
        settings["draft"] = chosen.draft.resolve()
    elif usual.draft is not None:
        settings["no_draft"] = True
    given = load.as_given() if chosen.draft is not None else without_draft(load)
    for name in sorted(given.keys() - {"model", "draft", "threads", "threads_draft"}):
        settings[name] = given[name]
    for name in ("pacer", "fallback", "acceptance", "max_depth"):
        value = getattr(chosen.rules, name)
        if chosen.draft is not None and value != getattr(EngineSettings(), name):
            settings[name] = value
    if chosen.threads != tuned.wanted.usual_threads:
        settings["threads"] = chosen.threads
    if chosen.draft is not None:
        if chosen.threads_draft is not None:
            settings["threads_draft"] = chosen.threads_draft
        if chosen.draft_max is not None:
            settings["draft_max"] = chosen.draft_max
        if not chosen.overlap:
            settings["no_overlap"] = True
        if chosen.lookup is not None:
            settings["lookup"] = chosen.lookup
        if chosen.offload is not None:
            settings |= chosen.offload.given
    return settings


def preset_reasons(tuned: Tuned, when: str, version: str) -> list[str]:
    """Why it says that, as measured."""
    best = tuned.best
    reasons = [
        f"Found by edgespec {version} tune, {when}, for the device, the models and the budget "
        "below.",
        *measured_lines(tuned.measured),
    ]
    reasons += _disturbed(tuned.others)
    if tuned.untried:
        reasons.append(_untried_line(tuned, tuned.untried))
    elif tuned.is_usual:
        reasons.append(
            f"The defaults stay: of {tuned.n_considered} settings none beat their "
            f"{best.tokens_per_s:.2f} tokens/s by more than the noise of {tuned.noise:.0%}."
        )
    else:
        reasons.append(
            f"{best.tokens_per_s:.2f} tokens/s against {tuned.trials[0].tokens_per_s:.2f} with the "
            f"defaults, the median of {len(best.rates)} runs in turn; predicted "
            f"{best.predicted.tokens_per_s:.2f}."
        )
    return reasons


def lines(tuned: Tuned) -> list[str]:
    """For people."""
    names = [choice_line(trial.choice, tuned.wanted.usual) for trial in tuned.trials]
    width = max(map(len, names))
    table = [f"{'settings':<{width}}  predicted  measured  to defaults        peak"]
    for name, trial in zip(names, tuned.trials, strict=True):
        ratio = 1 + gain_of(trial, tuned.trials[0])
        table.append(
            f"{name:<{width}}  {trial.predicted.tokens_per_s:>9.2f}  {trial.tokens_per_s:>8.2f}  "
            f"{ratio:>11.2f}  {format_size(trial.peak_bytes):>10}"
        )
    limit = tuned.best.predicted.limit
    return [
        *measured_lines(tuned.measured),
        "",
        *table,
        "",
        *_disturbed(tuned.others),
        _verdict(tuned),
        f"What takes most of a round with these settings: {limit}.",
        *tuned.notes,
    ]


def as_dict(tuned: Tuned) -> dict[str, Any]:
    """For programs."""
    measured = tuned.measured
    return {
        "settings": {
            name: value if isinstance(value, int | float | bool | None) else str(value)
            for name, value in preset_settings(tuned).items()
        },
        "is_default": tuned.is_usual,
        "gain": tuned.gain,
        "noise": tuned.noise,
        "others": max(tuned.others, measured.first.others),
        "considered": tuned.n_considered,
        "trials": [trial_dict(trial) for trial in tuned.trials],
        "first_run": first_run(measured.first),
        "speeds": {
            "disk_bytes_per_s": finite(measured.speeds.disk_bytes_per_s),
            "gain": measured.speeds.gain,
            "unhidden": measured.speeds.unhidden,
            "reached": measured.speeds.reached,
        },
        "disk": [asdict(read) for read in measured.reads],
        "passes": [asdict(timing) for timing in measured.first.passes],
        "drafts": [
            {
                "draft": str(draft),
                "threads": threads,
                "agreement": replayed.alpha,
                "trees": [asdict(tree) for tree in replayed.trees],
                "acceptance_by_confidence": [asdict(trust) for trust in replayed.trust],
            }
            for draft, threads, replayed in measured.replays
        ],
        **gpu_report.entries(tuned),
        "memory": {
            "budget_bytes": tuned.plan.budget_bytes,
            "planned_bytes": tuned.plan.planned_bytes,
            "peak_bytes": max(measured.first.peak_bytes, *(t.peak_bytes for t in tuned.trials)),
        },
        "notes": list(tuned.notes),
    }


def finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if isfinite(value) else None


def first_run(run: Written) -> dict[str, float]:
    """What a mean round of it was."""
    n = max(1, len(run.rounds))
    return {
        "tokens_per_s": run.tokens_per_s,
        "tokens_per_pass": run.tokens_per_pass,
        "tokens": run.n_tokens,
        "verified": sum(cost.verified for cost in run.rounds) / n,
        "pass_s": sum(cost.pass_s for cost in run.rounds) / n,
        "stall_s": sum(cost.stall_s for cost in run.rounds) / n,
        "draft_s": sum(cost.draft_s for cost in run.rounds) / n,
        "round_s": sum(cost.wall_s for cost in run.rounds) / n,
    }


def trial_dict(trial: Trial) -> dict[str, Any]:
    choice = trial.choice
    return {
        "draft": str(choice.draft) if choice.draft else None,
        "threads": choice.threads,
        "threads_draft": choice.threads_draft,
        "draft_max": choice.draft_max,
        "overlap": choice.overlap,
        "lookup": choice.lookup,
        "on_gpu": dict(choice.offload.given) if choice.offload else {},
        "predicted": asdict(trial.predicted),
        "tokens_per_s": trial.rates,
        "peak_bytes": trial.peak_bytes,
    }


def choice_line(choice: Choice, usual: Choice) -> str:
    """What differs from the defaults."""
    if choice == usual:
        return "defaults"
    if choice.draft is None and usual.draft is not None:
        said = ["--no-draft"]
    else:
        said = [] if choice.draft == usual.draft else [f"-md {choice.draft and choice.draft.name}"]
        if choice.draft_max != usual.draft_max:
            said.append(f"--draft-max {choice.draft_max or 'planned'}")
        if not choice.overlap and usual.overlap:
            said.append("--no-overlap")
        if choice.lookup is False and usual.lookup is None:
            said.append("--no-lookup")
        if choice.threads_draft != usual.threads_draft:
            said.append(f"-td {choice.threads_draft or choice.threads}")
        if choice.offload is not None:
            said.append(choice.offload.says)
    if choice.threads != usual.threads:
        said.append(f"-t {choice.threads}")
    return " ".join(said) or "defaults"


def measured_lines(measured: Measured) -> list[str]:
    """The device and the pair, for people."""
    found = []
    if measured.reads:
        first, *others = measured.reads
        rest = ", ".join(
            f"{format_rate(read.bytes_per_s)} with {read.n_parallel} of "
            f"{format_size(read.read_bytes)} at a time"
            for read in others
        )
        found.append(
            f"disk: {format_rate(first.bytes_per_s)} with one read of "
            f"{format_size(first.read_bytes)} at a time, as edgespec reads; {rest}"
        )
    found += gpu_report.copy_lines(measured)
    computing = ", ".join(
        f"{nodes:.0f}: {MS * seconds:.0f} ms"
        for nodes, seconds in measured.speeds.compute[measured.wanted.usual.threads]
    )
    reading, nbytes = "", measured.first.bytes_per_pass
    if nbytes:
        read_s = theory.pass_seconds(nbytes, measured.speeds.disk_bytes_per_s)
        reading = f"; a pass reads {format_size(nbytes)} in {MS * read_s:.0f} ms"
    found.append(f"computing of a pass, by its nodes: {computing}{reading}")
    run = measured.first
    found.append(
        f"a run with the defaults loaded in {run.load_s:.1f} s and wrote {run.n_tokens} tokens of "
        f"{len(run.texts)} texts at {run.tokens_per_s:.2f} tokens/s"
    )
    for draft, threads, replayed in measured.replays:
        found += _draft_lines(draft.name, threads, replayed)
    found += [
        f"{draft.name} with {offload.says}: {_trees(replayed)}"
        for draft, offload, replayed in measured.offloaded
    ]
    return [*found, *_disturbed(measured.first.others)]


def _disturbed(others: float) -> list[str]:
    """What a machine that is not idle makes of figures."""
    if others <= TOO_MUCH:
        return []
    return [
        f"Other processes took up to {others:.0%} of the cores beside these runs, which are slower "
        "for it: measure again when they are idle."
    ]


def _trees(replayed: Replayed) -> str:
    return ", ".join(
        f"{tree.drafted_nodes}: {tree.tokens_per_pass:.2f} in {MS * tree.draft_s:.1f} ms"
        for tree in replayed.trees
    )


def _draft_lines(name: str, threads: int, replayed: Replayed) -> list[str]:
    trust = ", ".join(
        f"{trust.least_confidence:.1f}: {trust.n_right} of {trust.n_guesses}"
        for trust in replayed.trust
    )
    return [
        f"{name}, {threads} threads: ranks {replayed.alpha:.0%} of the target's tokens first, so a "
        f"line of {LINE} guesses brings {theory.expected_tokens(replayed.alpha, LINE):.1f} tokens "
        "if they stand independently",
        f"  tokens per pass by guesses, as a tree: {_trees(replayed)}",
        f"  its first choices that stood, by confidence: {trust}",
    ]


def _verdict(tuned: Tuned) -> str:
    best, usual = tuned.best, tuned.trials[0]
    if tuned.untried:
        return _untried_line(tuned, tuned.untried)
    if tuned.is_usual:
        return (
            f"The defaults are best here: none of {tuned.n_considered} settings beat them by more "
            f"than the noise ({tuned.noise:.0%} from turn to turn)."
        )
    return (
        f"Best: {choice_line(best.choice, usual.choice)}, {tuned.gain:+.0%} over the defaults; "
        f"{tuned.n_considered} settings were considered."
    )


def _untried_line(tuned: Tuned, trial: Trial) -> str:
    usual = tuned.trials[0]
    return (
        f"The defaults stay: {choice_line(trial.choice, usual.choice)} is predicted to reach "
        f"{trial.predicted.tokens_per_s:.2f} tokens/s to their {usual.predicted.tokens_per_s:.2f}, "
        f"and a run takes {tuned.measured.shortest_run_s:.0f} s at least here: there was no time "
        "to confirm that. More --seconds let it run."
    )


def limit_of(prediction: Prediction) -> str:
    """What limits a pair, in a sentence."""
    takes = {
        "storage": "storage: every pass reads the weights that are not pinned",
        "computing": "computing decides, not storage",
        "drafting": "drafting takes longer than passes: computing decides, not storage",
    }
    return takes[prediction.limit]


def read_advice(reads: Sequence[ReadSpeed]) -> list[str]:
    """Where reads in parallel would be faster than the engine's one at a time."""
    if not reads:
        return []
    first, *others = reads
    best = max(others, key=lambda read: read.bytes_per_s, default=first)
    if best.bytes_per_s < 1.1 * first.bytes_per_s:
        return []
    return [
        f"This disk gives {best.bytes_per_s / first.bytes_per_s:.1f} times as much with "
        f"{best.n_parallel} reads of {format_size(best.read_bytes)} at a time; edgespec reads one "
        "after the other."
    ]
