"""The engine on a noisy virtual clock, and after texts on a machine of another speed."""

from __future__ import annotations

from dataclasses import replace
from statistics import harmonic_mean

import pytest

from virtual_clock import MACHINES
from virtual_pair import run, warm
from virtual_text import TEXTS

N_TOKENS = 48


@pytest.mark.parametrize("slower", [0.5, 2.0])
@pytest.mark.parametrize("machine", ["resident", "resident, repacked"])
def test_texts_on_a_slower_or_faster_machine_teach_as_much(machine: str, slower: float) -> None:
    """Prices in seconds of a slower machine were kept for rounds of many rows, while those without
    guesses soon showed what one row costs now: guesses seemed not to pay."""
    text = replace(TEXTS["good"], seed=2)
    alike = warm(MACHINES[machine], text, N_TOKENS).tokens_per_s
    other = warm(MACHINES[machine], text, N_TOKENS, slower=slower).tokens_per_s
    assert other == pytest.approx(alike, rel=0.02)


@pytest.mark.parametrize("text", ["medium", "useless"])
def test_passes_that_others_hold_up_mislead_no_text(text: str) -> None:
    """The first pass was slow: one row seemed to cost as much as eight, 0.73 and 0.82 of none."""
    drafted, alone = (
        harmonic_mean(
            run(
                replace(MACHINES["resident"], noise=0.3, slow_start=3.0, seed=seed),
                replace(TEXTS[text], seed=seed),
                N_TOKENS,
                drafts=drafts,
            )[0].tokens_per_s
            for seed in range(4)
        )
        for drafts in (True, False)
    )
    assert drafted >= 0.97 * alone
