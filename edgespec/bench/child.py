"""The jobs of a bench, each run in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import psutil

from edgespec import registry
from edgespec.bench.runs import Decoded
from edgespec.engine.settings import EngineSettings
from edgespec.errors import UsageError, marked
from edgespec.memory import process
from edgespec.paging import disk_speed
from edgespec.ports.baselines import BaselineRequest
from edgespec.rules.sampling import SamplingParams, distribution
from edgespec.session import session
from edgespec.settings.config import LoadSettings

RAW_S = 5.0
"""Longest timed read loop; long enough to measure slow devices."""
ANY_BUDGET_BYTES = 1 << 50


class RandomPick:
    """Draws of an ordinary sampler: the engine's filters, with random numbers in their order."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def __call__(self, logits: np.ndarray, tokens: Sequence[int]) -> int:
        window = self._sampling.repeat_last_n
        recent = tokens if window < 0 else tokens[max(0, len(tokens) - window) :]
        possible, shares = distribution(logits, self._sampling, recent)
        return int(self._random.choice(possible, p=shares))


def decode(
    load: LoadSettings,
    engine: EngineSettings,
    prompt: str,
    n_tokens: int,
    sampling: SamplingParams,
) -> Decoded:
    """Continue a prompt by up to `n_tokens`."""
    with session.load(load, engine) as running:
        result = running.generate(prompt, sampling, n_tokens)
        guesses = result.speculation
        return Decoded(
            tokens=result.tokens,
            n_prompt_tokens=len(result.prompt_tokens),
            load_s=running.load_report["total"],
            prompt_s=result.timings.prompt_s,
            decode_s=result.timings.decode_s,
            rounds=guesses.round_costs,
            bytes_read=sum(cost.bytes_read for cost in guesses.round_costs),
            peak_bytes=process.peak_rss_bytes(),
            notes=tuple(map(marked, (*running.plan.notes, *result.notes))),
            sources=guesses.sources,
        )


def decode_by_library(mode: str, request: BaselineRequest) -> Decoded:
    """Decode a text with the runtime's library itself, in its mode `mode`."""
    runtime = registry.find(request.model)
    if runtime.baselines is None:
        raise UsageError(f"the runtime {runtime.name} has no mode {mode}")
    run = runtime.baselines.run(mode, request)
    measured = {field.name: getattr(run, field.name) for field in fields(run)}
    return Decoded(**measured, peak_bytes=process.peak_rss_bytes())


def raw_bytes_per_s(path: Path) -> float:
    """Speed of plain direct reads of a file; 0 if it is too small to tell."""
    return disk_speed.bytes_per_second(path, RAW_S) or 0.0


def reason_without_draft(load: LoadSettings) -> str:
    """Reason why loading would leave the draft out; empty if it would not.

    Reads no weights. Raises the errors of planning.
    """
    plan = session.plan(load)
    is_left_out = load.draft is not None and not plan.has_draft
    return "; ".join(map(marked, plan.notes)) if is_left_out else ""


def resident_bytes(load: LoadSettings) -> int:
    """Planned memory of the whole process if all weights of the target are resident."""
    settings = load.model_copy(update={"memory_budget": ANY_BUDGET_BYTES})
    return session.plan(settings).planned_bytes


def storage_reads() -> int:
    """Bytes read from storage for this process; 0 if the OS does not count them."""
    counters = getattr(psutil.Process(), "io_counters", None)
    return int(counters().read_bytes) if counters else 0
