"""The settings that `tune` compares, as modes of a bench; none of them changes the text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from edgespec import registry
from edgespec.bench.bench_runs import Results
from edgespec.bench.modes import BenchDraft, Mode
from edgespec.engine.settings import EngineSettings
from edgespec.memory import process
from edgespec.settings.base import key_of
from edgespec.settings.config import LoadSettings
from edgespec.settings.options import declared

TREES = (8, 24, 48)
"""Values of draft_max to compare with the planned size of trees."""
MIN_GAIN = 0.03
"""A smaller gain in any turn counts as noise."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings that differ from the defaults, and the mode that they are measured in."""

    settings: Mapping[str, Any]
    """Values by the names of settings."""
    mode: Mode


def variants(
    load: LoadSettings,
    engine: EngineSettings,
    drafts: Sequence[BenchDraft],
    given: Collection[str],
) -> list[Variant]:
    """The defaults, then one change each, without changes of what the user has `given`."""
    first = drafts[0] if drafts else None
    found: list[Variant] = []
    for settings in _changes(load, engine, drafts):
        draft = settings.get("draft") or (None if "no_draft" in settings else first)
        told = {k: v.path if k == "draft" else v for k, v in settings.items()}
        if not told.keys() & set(given) - {"draft"}:
            found.append(Variant(told, _mode(told, engine, draft)))
    return found


def _changes(
    load: LoadSettings, engine: EngineSettings, drafts: Sequence[BenchDraft]
) -> Iterator[dict[str, Any]]:
    yield {}
    yield from ({"draft": draft} for draft in drafts[1:])
    for draft in drafts:
        yield from ({"draft": draft} | placed for placed in _on_gpu(load, draft))
    if drafts:
        yield {"no_overlap": not engine.no_overlap}
        yield {"no_draft": True}
        yield from ({"draft_max": n} for n in TREES)
        yield {"lookup": False}
    yield {"no_draft": True, "lookup": True} if drafts else {"lookup": True}
    if half := (load.threads or process.usable_cores()) // 2:
        yield {"threads": half}


def _on_gpu(load: LoadSettings, draft: BenchDraft) -> list[dict[str, Any]]:
    """Options that place the draft on a GPU; none without a GPU."""
    runtime = registry.find(draft.path)
    kind = declared().get(runtime.name)
    if runtime.gpu() is None or kind is None or not (n := registry.describe(draft.path).layers):
        return []
    options = kind.of(load.options.get(runtime.name))
    return [
        {k: v for k, v in placed.model_dump().items() if v != getattr(options, k)}
        for placed in options.draft_on_gpu(n).values()
    ]


def _mode(settings: Mapping[str, Any], engine: EngineSettings, draft: BenchDraft | None) -> Mode:
    """The mode of these settings, without `remember`, so that all runs start equal."""
    rules = {k: v for k, v in settings.items() if k in EngineSettings.model_fields}
    if "no_draft" in settings:
        rules = {"lookup": False} | rules
    known = LoadSettings.known() - {"draft"}
    pins = "draft_max" in rules or engine.pins_draft_max
    return Mode(
        ", ".join(_entry(name, value) for name, value in settings.items()) or "defaults",
        "",
        drafts=draft is not None,
        engine=EngineSettings.model_validate(
            {**engine.model_dump(), **rules, "pins_draft_max": pins, "remember": False}
        ),
        changed={name: value for name, value in settings.items() if name in known},
        draft=draft,
    )


def _entry(name: str, value: Any) -> str:
    shown = str(value).lower() if isinstance(value, bool) else getattr(value, "name", value)
    return f"{key_of(name)}={shown}"


def ratios(results: Results, names: Sequence[str]) -> dict[str, list[float]]:
    """Speeds of each mode relative to the first one's in the same turn."""
    rates: dict[str, dict[object, float]] = {name: {} for name in names}
    for row in results.rows:
        rates[row.mode][row.prompt, row.repetition] = row.decoded.tokens_per_s
    usual = rates[names[0]]
    return {
        name: [rate / usual[turn] for turn, rate in its.items() if usual.get(turn)]
        for name, its in rates.items()
    }


def slower_half(results: Results, names: Sequence[str]) -> list[str]:
    """Modes that need no further turn: the slower half, those not faster than the first, which
    itself ends with the last of them, and those that failed."""
    found = ratios(results, names)
    failed = {gone.mode for gone in results.failures}
    if not (n_turns := len(found[names[0]])):
        return [*names]  # nothing to compare them with
    going = [n for n in names[1:] if n not in failed and len(found[n]) == n_turns]
    going.sort(key=lambda name: -median(found[name]))
    kept = [name for name in going[: -(-len(going) // 2)] if median(found[name]) > 1]
    return [name for name in names if name not in kept and (name != names[0] or not kept)]


def fastest(results: Results, names: Sequence[str]) -> str:
    """The mode with most turns that beat the first one by more than the noise in each of them; the
    first one if none did in two turns."""
    found = ratios(results, names)
    n_turns = max([2, *(len(found[name]) for name in names[1:])])
    lasting = [name for name in names[1:] if len(found[name]) == n_turns]
    faster = [name for name in lasting if min(found[name]) > 1 + MIN_GAIN]
    return max(faster, key=lambda name: median(found[name]), default=names[0])
