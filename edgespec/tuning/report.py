"""Says what tuning found: lines for people, an object for programs, and the comments of a preset.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.tuning import measured_report
from edgespec.tuning.confirming import Trial, gain_of
from edgespec.tuning.cost_model import Choice, Prediction, without_draft
from edgespec.tuning.search import Tuned
from edgespec.units import format_size


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
    return settings | _guessing(chosen)


def _guessing(chosen: Choice) -> dict[str, Any]:
    """What it says of who guesses, how much and when."""
    settings: dict[str, Any] = {}
    if chosen.draft is not None and chosen.threads_draft is not None:
        settings["threads_draft"] = chosen.threads_draft
    if chosen.offload is not None:
        settings |= chosen.offload.given
    if chosen.guesses and chosen.draft_max is not None:
        settings["draft_max"] = chosen.draft_max
    if chosen.guesses and not chosen.overlap:
        settings["no_overlap"] = True
    if chosen.lookup is not None:
        settings["lookup"] = chosen.lookup
    return settings


def preset_reasons(tuned: Tuned, when: str, version: str) -> list[str]:
    """Why it says that, as measured."""
    best = tuned.best
    reasons = [
        f"Found by edgespec {version} tune, {when}, for the device, the models and the budget "
        "below.",
        *measured_report.lines(tuned.measured),
    ]
    reasons += measured_report.disturbed(tuned.others)
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
        *measured_report.lines(tuned.measured),
        "",
        *table,
        "",
        *measured_report.disturbed(tuned.others),
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
        **measured_report.entries(measured),
        "gpu_shares": [asdict(share) for share in tuned.gpu_shares],
        "memory": {
            "budget_bytes": tuned.plan.budget_bytes,
            "planned_bytes": tuned.plan.planned_bytes,
            "peak_bytes": max(measured.first.peak_bytes, *(t.peak_bytes for t in tuned.trials)),
        },
        "notes": list(tuned.notes),
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
    said = []
    if choice.draft != usual.draft:
        said.append(f"-md {choice.draft.name}" if choice.draft else "--no-draft")
    if choice.lookup and not usual.lookup:
        said.append("--lookup")
    if choice.guesses and choice.draft_max != usual.draft_max:
        said.append(f"--draft-max {choice.draft_max or 'planned'}")
    if choice.guesses and not choice.overlap and usual.overlap:
        said.append("--no-overlap")
    if choice.draft is not None and choice.threads_draft != usual.threads_draft:
        said.append(f"-td {choice.threads_draft or choice.threads}")
    if choice.offload is not None:
        said.append(choice.offload.says)
    if choice.threads != usual.threads:
        said.append(f"-t {choice.threads}")
    return " ".join(said) or "defaults"


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
