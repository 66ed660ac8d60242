"""Rows and reports of a bench that never ran, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.bench.bench_report import (
    AppliedLimits,
    BenchReport,
    MeasuredMachine,
    ModelFile,
    SkippedMode,
)
from edgespec.bench.modes import known_modes
from edgespec.bench.runs import Decoded
from edgespec.bench.summary import FinishedRun, spread, summarise
from edgespec.ports.baselines import Baseline
from edgespec.values import RoundStats, SourceStats

MB = 10**6
BASELINES = (
    Baseline("mmap", ""),
    Baseline("resident", "", resident=True),
    Baseline("spec", "", True),
)
KNOWN = known_modes(BASELINES)
"""Modes of a runtime with each kind of baseline."""


def round_cost(accepted: int = 0, **seconds: float) -> RoundStats:
    """A round of one second that the pass fills, half of it a stall."""
    cost = {"draft_s": 0.0, "pass_s": 1.0, "stall_s": 0.5, "wall_s": 1.0} | seconds
    return RoundStats(n_tokens=accepted + 1, accepted=accepted, verified=4, passes=1, **cost)


def row(
    mode: str,
    tokens_per_s: float,
    prompt: str = "a",
    repetition: int = 0,
    tokens: Sequence[int] = (1, 2, 3, 4),
    accepted: Sequence[int] | None = None,
    pass_bytes: int = 100 * MB,
    sources: Sequence[SourceStats] = (),
) -> FinishedRun:
    """A run with a round for each entry of `accepted`, by default for each token."""
    rounds = tuple(round_cost(n) for n in (accepted or [0] * len(tokens)))
    decoded = Decoded(
        tokens=tuple(tokens),
        n_prompt_tokens=5,
        load_s=0.5,
        prompt_s=0.25,
        decode_s=len(tokens) / tokens_per_s,
        rounds=rounds,
        bytes_read=pass_bytes * len(rounds),
        peak_bytes=90 << 20,
        notes=(),
        sources=tuple(sources),
    )
    return FinishedRun(mode, prompt, repetition, decoded)


def report(rows: Sequence[FinishedRun]) -> BenchReport:
    modes = list(dict.fromkeys(row.mode for row in rows))
    return BenchReport(
        command="edgespec bench --modes <all>",
        began="2026-01-02T03:04:05+00:00",
        versions={"edgespec": "0.1.0"},
        machine=MeasuredMachine("a processor & more", 2, 4, 8 << 30, "Linux"),
        target=ModelFile("big.gguf", 1 << 30),
        drafts=[ModelFile("small.gguf", 1 << 20)],
        limits=AppliedLimits("cgroup v1", 512 << 20, 300 * MB, 500 << 20),
        n_tokens=4,
        n_baseline_tokens=2,
        n_repetitions=1,
        prompts=list(dict.fromkeys(row.prompt for row in rows)),
        raw_bytes_per_s=spread([300.0 * MB]),
        descriptions={mode: f"what {mode} is" for mode in modes},
        modes=summarise(rows, modes, 300.0 * MB),
        left_out=[SkippedMode("resident", "it does not fit")],
        failures=[],
        notes=["a note"],
        rows=rows,
    )
