"""The report of a generation: what `generate` tells at the end, and `/stats` in a chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgespec.memory.budget import MemoryPlan
from edgespec.reports import Report, Row
from edgespec.settings.units import format_size
from edgespec.values import ExpertStats, GenerationResult, PagingStats, SpeculationStats

if TYPE_CHECKING:
    from edgespec.settings.config import SamplingParams


def generation_report(
    result: GenerationResult,
    plan: MemoryPlan,
    load_report: Mapping[str, float],
    peak_bytes: int,
    *more: Row,
) -> Report:
    """Report of a generation, with `more` rows."""
    timings, guesses = result.timings, result.speculation
    # notes of the plan were told when the model was loaded
    told = [f"note: {note}" for note in result.notes]
    return Report(
        Row("text", result.text),
        Row("finish_reason", result.finish_reason),
        Row("timings", asdict(timings) | {"load_s": load_report["total"]}),
        Row(
            "tokens",
            result.tokens,
            f"{_count_and_rate(result, timings.first_token_s)}; ended by {result.finish_reason}",
        ),
        Row(
            "prompt_tokens",
            result.prompt_tokens,
            f"prompt: {len(result.prompt_tokens)} tokens in {timings.prompt_s:.2f} s"
            f"{_kept(result)}; loading: {load_report['total']:.2f} s",
        ),
        Row(
            "speculation",
            asdict(guesses) | {"tokens_per_pass": guesses.tokens_per_pass},
            _guess_lines(guesses, plan.has_draft),
        ),
        Row("paging", result.paging, _paging_lines(result.paging, plan.paged)),
        Row("reused_tokens", result.reused_tokens),
        Row("memory", memory_report(plan, peak_bytes)),
        Row("notes", [*plan.notes, *result.notes], told),
        Row("load", load_report),
        Row("plan", plan, ()),
        *more,
    )


def speed_line(result: GenerationResult) -> str:
    """The closing line of an answer: `64 tokens, 26.7 tokens/s, 3.10 per pass`."""
    guesses = result.speculation
    a_pass = f", {guesses.tokens_per_pass:.2f} per pass" if guesses.verified else ""
    return _count_and_rate(result) + a_pass


def _count_and_rate(result: GenerationResult, first_token_s: float = 0.0) -> str:
    """`64 tokens, the first after 1.20 s, 26.7 tokens/s`; a first token that came with its prompt
    has no rate."""
    n_tokens, rate = len(result.tokens), result.timings.tokens_per_s
    parts = [f"{n_tokens} token{'s' * (n_tokens != 1)}"]
    if n_tokens and first_token_s:
        parts.append(f"the first after {first_token_s:.2f} s")
    if rate:
        parts.append(f"{rate:.1f} tokens/s")
    return ", ".join(parts)


def sampling_line(sampling: SamplingParams) -> str:
    """Settings that differ from their neutral defaults: `temperature 0.8, top_k 40, seed 7`."""
    if sampling.temperature == 0:
        return "greedy"
    changed = sampling.model_dump(exclude_defaults=True) | {"seed": sampling.seed}
    return ", ".join(f"{name} {value}" for name, value in changed.items() if name != "logit_bias")


def memory_report(plan: MemoryPlan, peak_bytes: int) -> Report:
    """Memory budget, planned bytes and measured peak of the process."""
    line = (
        f"memory: peak {format_size(peak_bytes)}, planned {format_size(plan.planned_bytes)}, "
        f"budget {format_size(plan.budget_bytes)}"
    )
    return Report(
        Row("budget_bytes", plan.budget_bytes),
        Row("planned_bytes", plan.planned_bytes),
        Row("peak_bytes", peak_bytes, line + " (not enforced here)" * (not plan.enforced)),
    )


def _kept(result: GenerationResult) -> str:
    """Phrase about tokens of a prompt that no pass has read: `, 440 of them kept from before`."""
    counts = {"kept from before": result.reused_tokens, "not read": result.unread_tokens}
    return "".join(f", {n} of them {what}" for what, n in counts.items() if n)


def _guess_lines(guesses: SpeculationStats, has_draft: bool) -> list[str]:
    """A line about guesses, or why a draft made none."""
    if not guesses.drafted:
        line = "draft: no guess was tried, since passes without guesses seem faster here"
        return [line] if has_draft and guesses.rounds > 1 else []
    guesser = guesses.sources[0].source if len(guesses.sources) == 1 else "guesses"
    by_source = ""
    if len(guesses.sources) > 1:
        counts = (f"{by.source} {by.accepted} of {by.verified}" for by in guesses.sources)
        by_source = f" ({', '.join(counts)})"
    return [
        f"{guesser}: {guesses.accepted} of {guesses.verified} verified guesses accepted"
        f"{by_source}, {guesses.tokens_per_pass:.2f} tokens per pass"
    ]


def _paging_lines(paging: PagingStats, is_paged: bool) -> list[str]:
    """Lines about what passes read."""
    merged = f", {paging.merge_s:.2f} s of merging beside" if paging.merge_s else ""
    lines = [
        f"paging: {format_size(paging.bytes_read)} read in {paging.passes} passes, "
        f"{paging.stall_s:.2f} s waited for storage{merged}"
    ]
    return lines * is_paged + ([_expert_line(paging.experts)] if paging.experts else [])


def _expert_line(experts: ExpertStats) -> str:
    n_chosen = experts.hits + experts.misses
    return (
        f"experts: of {n_chosen:,} that layers chose {experts.hits / (n_chosen or 1):.0%} were in "
        f"memory; {format_size(experts.bytes_read)} read, {experts.stall_s:.2f} s waited for them"
    )
