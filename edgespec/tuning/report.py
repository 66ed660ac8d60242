"""The result of `tune`: its report, and a preset with comments."""

from __future__ import annotations

from typing import Any

from edgespec.engine.settings import EngineSettings
from edgespec.jobs.other_work import DISTURBING_SHARE
from edgespec.reports import Column, Report, Row, Table
from edgespec.settings.units import format_size
from edgespec.tuning.successive_halving import Trials, TuningResult, label
from edgespec.tuning.trial import TrialFigures


def preset_settings(tuned: TuningResult) -> dict[str, Any]:
    """Settings of the preset by name: models, settings the user gave, tuned changes."""
    load, best, defaults = tuned.job.load, tuned.winner.candidate, tuned.job.defaults
    settings: dict[str, Any] = {"model": load.model.resolve()}
    if best.draft is not None:
        settings["draft"] = best.draft.resolve()
    values = load.as_given() if best.draft is not None else load.without_draft().as_given()
    for name in sorted(values.keys() - {"model", "draft"}):
        settings[name] = values[name]
    for name in ("pacer", "fallback", "acceptance", "max_depth"):
        value = getattr(tuned.job.engine, name)
        if best.draft is not None and value != getattr(EngineSettings(), name):
            settings[name] = value
    changed = best.settings(defaults)
    changed.pop("draft", None)
    return settings | changed


def preset_reasons(tuned: TuningResult, when: str, version: str) -> list[str]:
    """Comments of the preset: when it was found, and by what measurement."""
    found = f"Found by edgespec {version} tune, {when}, for this device, models and budget."
    return [found, _verdict(tuned), *interference_warning(tuned.others)]


def report(tuned: TuningResult) -> Report:
    """Report of the result: the table of settings and the verdict."""
    ran = [one for one in tuned.trials if one.runs or one.failure]
    left_out = [
        f"{label(one.candidate, tuned.job.defaults)}: left out: {one.failure}"
        for one in ran
        if one.failure
    ]
    if n_untried := len(tuned.trials) - len(ran):
        left_out.append(f"{n_untried} others were not tried for lack of time: raise --seconds")
    first = tuned.defaults.runs[0]
    columns = _columns(tuned)
    return Report(
        Row(format=["", first_line(first), *(f"note: {note}" for note in first.notes), ""]),
        Row("settings", preset_settings(tuned)),
        Row("trials", Table(columns, tuned.trials), ()),
        Row(value=Table(columns, [one for one in ran if one.runs])),
        Row(format=[*left_out, ""]),
        Row("temperature", tuned.job.sampling.temperature, _temperature_lines),
        Row("others", tuned.others, interference_warning),
        Row("gain", tuned.gain, _verdict(tuned)),
        Row("is_default", tuned.is_default),
        Row("noise", tuned.noise),
        Row("peak_bytes", max(one.peak_bytes for one in tuned.trials)),
    )


def _columns(tuned: TuningResult) -> list[Column[Trials]]:
    defaults = tuned.job.defaults
    return [
        Column("flags", "settings", lambda one: label(one.candidate, defaults), is_left=True),
        Column("draft", value=lambda one: one.candidate.draft),
        Column("settings", value=lambda one: one.candidate.settings(defaults)),
        Column("tokens_per_s", value=lambda one: one.rates),
        Column("", "tokens/s", lambda one: one.tokens_per_s, "{:.2f}".format),
        Column("", "to defaults", lambda one: 1 + one.gain(tuned.defaults), "{:.2f}".format),
        Column("tokens_per_pass", "per pass", _tokens_per_pass, "{:.2f}".format),
        Column("peak_bytes", "peak", format=format_size),
        Column("", "runs", lambda one: len(one.runs)),
        Column("failure"),
    ]


def _tokens_per_pass(one: Trials) -> float | None:
    return one.runs[-1].tokens_per_pass if one.runs else None


def _temperature_lines(temperature: float) -> list[str]:
    return [f"Texts were sampled at temperature {temperature:g}."] if temperature else []


def first_line(run: TrialFigures) -> str:
    """One line about the first run with the defaults."""
    reading = ""
    if run.bytes_per_pass:
        reading = f"; a pass reads {format_size(run.bytes_per_pass)}"
        if run.disk_bytes_per_s:
            reading += f" at {run.disk_bytes_per_s / 1e6:,.0f} MB/s"
    return (
        f"defaults: loaded in {run.load_s:.1f} s, {run.n_tokens} tokens of {run.n_texts} texts at "
        f"{run.tokens_per_s:.2f} tokens/s, {run.tokens_per_pass:.2f} per pass, "
        f"{1e3 * run.compute_s:.0f} ms of a pass computing{reading}"
    )


def interference_warning(others: float) -> list[str]:
    """Warning lines if other processes used more than DISTURBING_SHARE of the cores."""
    if others <= DISTURBING_SHARE:
        return []
    return [
        f"Other processes used up to {others:.0%} of the cores during these runs, which slowed "
        "them: measure again on an idle machine."
    ]


def _verdict(tuned: TuningResult) -> str:
    usual = f"{tuned.defaults.tokens_per_s:.2f} tokens/s"
    if tuned.is_default:
        n_tried = sum(bool(one.runs) for one in tuned.trials) - 1
        return (
            f"The defaults are best here: {n_tried} other settings did not beat their {usual} "
            f"by more than the noise ({tuned.noise:.0%} from turn to turn)."
        )
    best = label(tuned.winner.candidate, tuned.job.defaults)
    return (
        f"Best: {best}, {tuned.winner.tokens_per_s:.2f} tokens/s, {tuned.gain:+.0%} over the "
        f"defaults' {usual}."
    )
