"""Reports of a generation or a plan, as JSON values and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.draft_worth import note_on_draft
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.settings.config import USUAL_DRAFT_MAX
from edgespec.settings.units import format_rate, format_size
from edgespec.values import ExpertStats, GenerationResult, SpeculationStats

if TYPE_CHECKING:
    from edgespec.engine.planning.decision import RoundPlanner
    from edgespec.settings.config import SamplingParams
    from edgespec.tuning.pair_figures import Prediction

LOOKUP_TOKENS, DRAFT_TOKENS = (1.1, 3.0), (1.5, 8.0)
"""Tokens per pass of real models: from the text alone, and with a draft or head."""


def generation_report(
    result: GenerationResult,
    plan: MemoryPlan,
    load_report: Mapping[str, float],
    peak_bytes: int,
    **more: Any,
) -> dict[str, Any]:
    """Report of `generate` as JSON values; `more` has further keys."""
    return {
        "text": result.text,
        "prompt_tokens": list(result.prompt_tokens),
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "timings": asdict(result.timings) | {"load_s": load_report["total"]},
        "speculation": asdict(result.speculation)
        | {"tokens_per_pass": result.speculation.tokens_per_pass},
        "paging": asdict(result.paging),
        "memory": memory_report(plan, peak_bytes),
        "reused_tokens": result.reused_tokens,
        "saved_passes": result.saved_passes,
        "dropped_tokens": result.dropped_tokens,
        "notes": [*plan.notes, *_notes_on_result(plan, result)],
        "load": dict(load_report),
        "plan": plan.as_dict(),
        **more,
    }


def generation_summary(
    result: GenerationResult, plan: MemoryPlan, load_report: Mapping[str, float], peak_bytes: int
) -> list[str]:
    """Summary lines at the end of a generation."""
    timings, guesses, paging = result.timings, result.speculation, result.paging
    lines = [
        f"{len(result.tokens)} tokens in {timings.decode_s:.2f} s: "
        f"{timings.tokens_per_s:.1f} tokens/s; ended by {result.finish_reason}",
        f"prompt: {len(result.prompt_tokens)} tokens in {timings.prompt_s:.2f} s{_kept(result)}; "
        f"loading: {load_report['total']:.2f} s",
    ]
    if guesses.drafted:
        lines.append(
            f"{_guesser(guesses)}: {guesses.accepted} of {guesses.verified} verified guesses "
            f"accepted{_by_source(guesses)}, "
            f"{guesses.tokens_per_pass:.2f} tokens per pass"
        )
    elif plan.has_draft and guesses.rounds > 1:
        lines.append("draft: no guess was tried, since passes without guesses seem faster here")
    if plan.paged:
        lines.append(
            f"paging: {format_size(paging.bytes_read)} read in {paging.passes} passes, "
            f"{paging.stall_s:.2f} s waited for storage"
        )
    if paging.experts:
        lines.append(_expert_line(paging.experts))
    lines.append(memory_line(plan, peak_bytes))
    return lines + [f"note: {note}" for note in _notes_on_result(plan, result)]


def speed_line(result: GenerationResult) -> str:
    """The closing line of an answer: `64 tokens, 26.7 tokens/s, 3.10 per pass`."""
    guesses = result.speculation
    a_pass = f", {guesses.tokens_per_pass:.2f} per pass" if guesses.verified else ""
    n_tokens, rate = len(result.tokens), result.timings.tokens_per_s
    return f"{n_tokens} token{'s' * (n_tokens != 1)}, {rate:.1f} tokens/s{a_pass}"


def _notes_on_result(plan: MemoryPlan, result: GenerationResult) -> list[str]:
    """Notes about a text; those of the plan are told when it is loaded."""
    on_draft = note_on_draft(plan, result.speculation)
    return [*result.notes, *([on_draft] if on_draft else [])]


def _kept(result: GenerationResult) -> str:
    """Phrase about reused prompt tokens: `, 440 of them kept from before (1 pass saved)`."""
    if not result.reused_tokens:
        return ""
    n_passes = result.saved_passes
    saved = f" ({n_passes} pass{'es' * (n_passes != 1)} saved)" if n_passes else ""
    return f", {result.reused_tokens} of them kept from before{saved}"


def _expert_line(experts: ExpertStats) -> str:
    n_chosen = experts.hits + experts.misses
    return (
        f"experts: of {n_chosen:,} that layers chose {experts.hit_rate:.0%} were in memory; "
        f"{format_size(experts.bytes_read)} read, {experts.stall_s:.2f} s waited for them"
    )


def _guesser(guesses: SpeculationStats) -> str:
    return guesses.sources[0].source if len(guesses.sources) == 1 else "draft"


def _by_source(guesses: SpeculationStats) -> str:
    """Counts if several sources guessed: ` (draft 20 of 31, lookup 4 of 6)`."""
    if len(guesses.sources) < 2:
        return ""
    counts = (f"{by.source} {by.accepted} of {by.verified}" for by in guesses.sources)
    return f" ({', '.join(counts)})"


def sampling_line(sampling: SamplingParams) -> str:
    """Settings that differ from their neutral defaults: `temperature 0.8, top_k 40, seed 7`."""
    if sampling.temperature == 0:
        return "greedy"
    changed = sampling.model_dump(exclude_defaults=True) | {"seed": sampling.seed}
    return ", ".join(f"{name} {value}" for name, value in changed.items() if name != "logit_bias")


def memory_report(plan: MemoryPlan, peak_bytes: int) -> dict[str, int]:
    """Memory budget, planned bytes and measured peak of the process."""
    return {
        "budget_bytes": plan.budget_bytes,
        "planned_bytes": plan.planned_bytes,
        "peak_bytes": peak_bytes,
    }


def memory_line(plan: MemoryPlan, peak_bytes: int) -> str:
    """One line about the peak, the plan and the budget."""
    return (
        f"memory: peak {format_size(peak_bytes)}, planned {format_size(plan.planned_bytes)}, "
        f"budget {format_size(plan.budget_bytes)}"
        + ("" if plan.enforced else " (not enforced here)")
    )


def plan_report(
    plan: MemoryPlan, disk_bytes_per_s: float | None, predicted: Prediction | None = None
) -> dict[str, Any]:
    """Report of `plan` as JSON values."""
    return plan.as_dict() | {
        "disk_bytes_per_s": disk_bytes_per_s,
        "seconds_per_pass": _pass_s(plan, disk_bytes_per_s) if disk_bytes_per_s else None,
        "predicted": asdict(predicted) if predicted else None,
    }


def plan_table(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None = None,
    disk_source: str = "",
    predicted: Prediction | None = None,
    measured: float | None = None,
) -> list[str]:
    """Lines about the memory plan and the predicted cost of a pass.

    `measured` are tokens per pass of a draft made from the target.
    """
    width = max(len(row.what) for row in (*plan.rows, *plan.gpu_rows))
    lines = _row_lines(plan.rows, width)
    enforced = "" if plan.enforced else ", which is not enforced on this platform"
    lines += [
        f"{'planned':<{width + 9}}  {format_size(plan.planned_bytes):>10}",
        f"{'budget':<{width + 9}}  {format_size(plan.budget_bytes):>10}{enforced}",
        f"{'smallest budget that works':<{width + 9}}  {format_size(plan.smallest_bytes):>10}",
        "",
    ]
    if plan.gpu_budget_bytes:
        lines += [
            *_row_lines(plan.gpu_rows, width),
            f"{'planned on the GPU':<{width + 9}}  {format_size(plan.gpu_planned_bytes):>10}",
            f"{'budget there':<{width + 9}}  {format_size(plan.gpu_budget_bytes):>10}",
            "",
        ]
    lines.append(f"A prompt is read in batches of {plan.batch_size:,} tokens or less.")
    lines += _places_lines(plan)
    lines += _pass_lines(plan, disk_bytes_per_s, disk_source, predicted, measured)
    return [*lines, *plan.notes]


def _places_lines(plan: MemoryPlan) -> list[str]:
    """Lines about texts at once."""
    lines = []
    if plan.n_parallel > 1:
        lines.append(f"Up to {plan.n_parallel} texts are generated at once.")
    if plan.text_bytes:
        size = format_size(plan.text_bytes)
        lines.append(f"A place for one more text at once (-np) takes about {size}.")
    return lines


def _expert_lines(plan: MemoryPlan, experts: ExpertSizes) -> list[str]:
    n_rows = _planner(plan, disk_bytes_per_s=1.0).plan_score().n_rows
    more = f", over {n_rows} {format_size(plan.expected_bytes(n_rows))}" if n_rows > 1 else ""
    return [
        f"{experts.n_layers} layers choose {experts.n_used} of {experts.n_experts} experts for a "
        f"token: {format_size(experts.token_bytes)} of {format_size(experts.nbytes)}.",
        f"{plan.expert_share:.0%} of the experts fit into memory at once: a pass over one token "
        f"probably reads {format_size(plan.bytes_per_pass)}{more}.",
    ]


def _planner(plan: MemoryPlan, disk_bytes_per_s: float) -> RoundPlanner:
    """A round planner without measurements; imported here because it needs NumPy."""
    from edgespec.session.plan_score import planner_of

    return planner_of(plan, disk_bytes_per_s)


def _row_lines(rows: Sequence[MemoryRow], width: int) -> list[str]:
    return [
        f"{row.owner:<8} {row.what:<{width}}  {format_size(row.nbytes):>10}"
        for row in rows
        if row.nbytes
    ]


def _pass_lines(
    plan: MemoryPlan,
    disk_bytes_per_s: float | None,
    disk_source: str,
    predicted: Prediction | None,
    measured: float | None,
) -> list[str]:
    if not plan.paged:
        lines = ["The target fits into memory: its weights stay there, and no pass reads the disk."]
        return lines + ([_predicted_line(predicted)] if predicted else [])
    segments = f"{plan.n_pinned} of {len(plan.segments)} segments are pinned"
    pinned = format_size(plan.pinned_bytes)
    if plan.n_pinned < len(plan.segments):
        ring = format_size(plan.ring_bytes)
        lines = [f"{segments} ({pinned}); the others stream through a ring of {ring}."]
    else:
        lines = [f"All {len(plan.segments)} segments are pinned ({pinned})."]
    slices = Counter(segment.slice_of for segment in plan.segments if segment.slice_of)
    if slices:
        name = next(iter(slices)) if len(slices) == 1 else f"{len(slices)} matrices"
        lines.append(f"{slices.total()} of the segments are slices of {name}.")
    if plan.experts is None:
        lines.append(f"A pass reads {format_size(plan.bytes_per_pass)}.")
    else:
        lines += _expert_lines(plan, plan.experts)
    if disk_bytes_per_s:
        disk = f"At {format_rate(disk_bytes_per_s)} ({disk_source})"
        reading = f"{disk} reading takes {_pass_s(plan, disk_bytes_per_s):.2f} s"
        if predicted:
            lines += [f"{reading}.", _predicted_line(predicted)]
        else:
            lines.append(f"{reading}: {_bound(plan, disk_bytes_per_s, measured)}")
    return lines


def _predicted_line(predicted: Prediction) -> str:
    return (
        f"Predicted: {predicted.tokens_per_s:.2f} tokens/s, {predicted.tokens_per_pass:.1f} a "
        "pass, from a run of `tune` or `doctor` with these models here, on the texts used there."
    )


def _pass_s(plan: MemoryPlan, disk_bytes_per_s: float) -> float:
    """Seconds of reading for a pass over one token."""
    return _planner(plan, disk_bytes_per_s).costs.curve.second(1)


def _bound(plan: MemoryPlan, disk_bytes_per_s: float, measured: float | None) -> str:
    """Line with the upper bound set by storage, if compute and guesses were not measured here.

    `measured` are the draft's tokens per pass if it was made from the target.
    """
    has_draft = plan.has_draft
    if plan.max_nodes == 1:  # without guesses, show what they would gain
        plan = replace(plan, max_nodes=1 + USUAL_DRAFT_MAX)
    best = _planner(plan, disk_bytes_per_s).plan_score()
    low, high = DRAFT_TOKENS if has_draft else LOOKUP_TOKENS
    guessed = ", and guesses hardly pay"
    if best.n_rows > 1 and measured:
        guessed = (
            f", {best.seconds / measured:.2f} s with {measured:.1f} tokens a pass, as measured "
            "when this draft was made"
        )
    elif best.n_rows > 1:
        guesser = "this draft" if has_draft else "guesses from the text"
        guessed = (
            f", {best.seconds / high:.2f} to {best.seconds / low:.2f} s with {guesser} if it "
            f"yields {low:g} to {high:g} tokens a pass, as with real models"
        )
    return (
        f"{_pass_s(plan, disk_bytes_per_s):.2f} s per token alone{guessed}.\n"
        "Computing may take longer: `edgespec doctor` with these models measures it."
    )
