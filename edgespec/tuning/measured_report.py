"""Says what was measured of a device and a pair: lines for people, entries for programs.

Values in, text and dictionaries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from edgespec import theory
from edgespec.bench.other_work import TOO_MUCH
from edgespec.tuning.measurements import ReadSpeed, Replayed, TreeYield, Written
from edgespec.tuning.measuring import Measured
from edgespec.units import format_rate, format_size

MS = 1e3
FEW = 60
"""Tokens: texts differ sixfold in how well they are guessed, so as many as ten of six texts."""
LINE = 8
"""Guesses, for comparison with a tree of as many."""


def lines(measured: Measured) -> list[str]:
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
    for runtime, gpu in {gpu.runtime: gpu for gpu in measured.gpus}.items():
        found.append(
            f"GPU of the runtime {runtime}: {gpu.gpu}; {format_rate(gpu.bytes_per_s)} with copies "
            f"of {format_size(gpu.copy_bytes)} to it"
        )
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
        + (": little to predict from, more time would show more" if run.n_tokens < FEW else "")
    )
    for draft, threads, replayed in measured.replays:
        found += _draft_lines(draft.name, threads, replayed)
    found += [
        f"{draft.name} with {offload.says}: tokens per pass by guesses, as a tree: "
        f"{_trees(replayed.trees)}"
        for draft, offload, replayed in measured.offloaded
    ]
    if run.lookups:
        found.append(f"guesses from the text alone, tokens per pass: {_trees(run.lookups)}")
    return [*found, *disturbed(run.others)]


def disturbed(others: float) -> list[str]:
    """What a machine that is not idle makes of figures."""
    if others <= TOO_MUCH:
        return []
    return [
        f"Other processes took up to {others:.0%} of the cores beside these runs, which are slower "
        "for it: measure again when they are idle."
    ]


def _trees(trees: Sequence[TreeYield]) -> str:
    return ", ".join(
        f"{tree.drafted_nodes}: {tree.tokens_per_pass:.2f} in {MS * tree.draft_s:.1f} ms"
        for tree in trees
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
        f"  tokens per pass by guesses, as a tree: {_trees(replayed.trees)}",
        f"  its first choices that stood, by confidence: {trust}",
    ]


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


def entries(measured: Measured) -> dict[str, Any]:
    """For programs."""
    return {
        "first_run": _first_run(measured.first),
        "speeds": {
            "disk_bytes_per_s": _finite(measured.speeds.disk_bytes_per_s),
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
        "lookups": [asdict(tree) for tree in measured.first.lookups],
        "gpus": gpus(measured),
        "drafts_on_gpu": [
            {
                "draft": str(draft),
                "options": dict(offload.given),
                "trees": [asdict(tree) for tree in replayed.trees],
            }
            for draft, offload, replayed in measured.offloaded
        ],
    }


def gpus(measured: Measured) -> list[dict[str, Any]]:
    """For programs."""
    return [asdict(gpu) | {"model": str(gpu.model)} for gpu in measured.gpus]


def _first_run(run: Written) -> dict[str, float]:
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


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if isfinite(value) else None
