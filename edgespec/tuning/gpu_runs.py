"""Runs of settings, on a GPU where they say so: what room it has is in no plan, and what its
library takes of the process's memory was measured on a small product. Only a run shows both.

Shares of the target are run to be proposed, since a GPU rounds otherwise; nothing is chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgespec.errors import EdgespecError
from edgespec.tuning.cost_model import Choice
from edgespec.tuning.measurements import Written
from edgespec.tuning.measuring import Lab, Measured, Say
from edgespec.tuning.offloads import Offload, offloads
from edgespec.units import format_size

TIME_SHARE = 1 / 4
"""Of what is left before settings are confirmed, where a GPU could take layers of the target."""


@dataclass(frozen=True, slots=True)
class RunLength:
    """So many of the first texts, so many tokens of each, cut short after `most_s`."""

    n_texts: int
    n_tokens: int
    most_s: float


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Options that put layers of the target on a GPU, and how a run with them went."""

    says: str
    tokens_per_s: float
    peak_bytes: int


def run_choice(
    lab: Lab,
    measured: Measured,
    choice: Choice,
    length: RunLength,
    share: Offload | None = None,
) -> Written | str:
    """A run, with a share of the target on a GPU if one is given. Where a GPU computes, it may come
    to nothing, or to more memory than the budget: then why it is left out."""
    load, on_gpu = choice.load(measured.wanted.load), share or choice.offload
    if share is not None:
        load = share.added_to(load)
    try:
        run = lab.write(
            load, choice.engine, length.n_tokens, most_s=length.most_s, n_texts=length.n_texts
        )
    except EdgespecError as error:
        if on_gpu is None:
            raise
        return f"left out: {on_gpu.says} ({error})"
    budget_bytes = measured.plan.budget_bytes
    if on_gpu is None or run.peak_bytes <= budget_bytes:
        return run
    return (
        f"left out: {on_gpu.says}, whose run took {format_size(run.peak_bytes)} of the budget's "
        f"{format_size(budget_bytes)}"
    )


def shares_of_target(measured: Measured) -> tuple[Offload, ...]:
    """What a GPU could take of it."""
    load = measured.wanted.load
    return tuple(offloads(load, measured.gpus, load.model, "target"))


def run_shares(
    lab: Lab,
    measured: Measured,
    chosen: Choice,
    shares: Sequence[Offload],
    length: RunLength | None,
    say: Say,
) -> Iterator[GpuShare | str]:
    """A run of each beside the chosen settings while there is time, with as many tokens as those
    wrote; why one is left out."""
    for n_left, share in zip(range(len(shares), 0, -1), shares, strict=True):
        if length is None or lab.left_s <= measured.shortest_run_s:
            return
        say(f"a run with {share.says}")
        as_long = replace(length, most_s=lab.left_s / n_left)
        run = run_choice(lab, measured, chosen, as_long, share)
        if isinstance(run, Written):
            yield GpuShare(share.says, run.tokens_per_s, run.peak_bytes)
        else:
            yield run
