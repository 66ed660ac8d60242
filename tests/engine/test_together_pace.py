"""Several texts at once on a virtual clock, against the same texts one after the other."""

from __future__ import annotations

import pytest

from virtual_pair import MACHINES, PROMPT_TOKENS, TEXTS, run, together

N_TEXTS, N_TOKENS = 4, 48


def one_by_one(machine: str, text: str) -> float:
    """Tokens a second of the texts one after the other, prompts included."""
    it = MACHINES[machine]
    prompt_s = max(it.read_s, it.compute_s(PROMPT_TOKENS - 1))
    measured = run(it, TEXTS[text], N_TOKENS, n_texts=N_TEXTS)
    return N_TEXTS * N_TOKENS / sum(prompt_s + each.seconds for each in measured)


@pytest.mark.parametrize(
    ("machine", "text", "times"),
    [
        ("50 %, 300 MB/s", "good", 1.6),
        ("50 %, 300 MB/s", "medium", 2.3),
        ("50 %, 300 MB/s", "useless", 3.0),
        ("80 %", "medium", 1.4),
        ("resident, tiny", "medium", 1.0),
        ("resident, tiny", "useless", 1.0),
    ],
)
def test_texts_at_once_are_faster_than_one_by_one(machine: str, text: str, times: float) -> None:
    rate, _ = together(MACHINES[machine], TEXTS[text], N_TOKENS, N_TEXTS)
    assert rate >= times * one_by_one(machine, text)


@pytest.mark.parametrize("machine", ["50 %, 300 MB/s", "80 %", "resident, tiny"])
def test_a_useless_draft_costs_texts_at_once_a_few_percent(machine: str) -> None:
    drafted, _ = together(MACHINES[machine], TEXTS["useless"], N_TOKENS, N_TEXTS)
    plain, _ = together(MACHINES[machine], TEXTS["useless"], N_TOKENS, N_TEXTS, drafts=False)
    assert drafted >= 0.96 * plain
