"""Several texts at once on a virtual clock, against the same texts one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.memory.needs import FOREST_SIZE, TREE_SIZES
from edgespec.values import GenerationResult
from virtual_clock import AMD, MACHINES, Machine
from virtual_pair import run, together
from virtual_text import PROMPT_TOKENS, TEXTS

N_TEXTS, N_TOKENS = 4, 48


def one_by_one(machine: str, text: str) -> float:
    """Tokens a second of the texts one after the other, prompts included."""
    it = MACHINES[machine]
    prompt_s = max(it.read_s, it.compute_s(PROMPT_TOKENS - 1))
    measured = run(it, TEXTS[text], N_TOKENS, n_texts=N_TEXTS)
    return N_TEXTS * N_TOKENS / sum(prompt_s + each.seconds for each in measured)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "text", "times"),
    [
        ("50 %, 300 MB/s", "good", 2.4),
        ("50 %, 300 MB/s", "medium", 2.4),
        ("50 %, 300 MB/s", "useless", 3.6),
        ("80 %", "medium", 1.4),
        ("resident, tiny", "medium", 1.6),
        ("resident, tiny", "useless", 1.6),
    ],
)
def test_texts_at_once_are_faster_than_one_by_one(machine: str, text: str, times: float) -> None:
    rate, _ = together(MACHINES[machine], TEXTS[text], N_TOKENS, N_TEXTS)
    assert rate >= times * one_by_one(machine, text)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("machine", ["50 %, 300 MB/s", "50 %", "80 %", "resident, tiny", "mixture"])
def test_texts_at_once_are_not_slower_for_being_guessed_at(machine: str, text: str) -> None:
    drafted, _ = together(MACHINES[machine], TEXTS[text], 32, 8)
    plain, _ = together(MACHINES[machine], TEXTS[text], 32, 8, drafts=False)
    assert drafted >= 0.92 * plain


@pytest.mark.costly
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "machine",
    ["80 %", *(pytest.param(m, marks=pytest.mark.slow) for m in ("50 %", "resident, tiny"))],
)
def test_texts_that_come_one_by_one_lose_little_by_guesses(machine: str, text: str) -> None:
    """A text guessed at while it was alone ends early, and leaves fewer to share a pass."""
    drafted, _ = together(MACHINES[machine], TEXTS[text], 32, 8, staggered=True)
    plain, _ = together(MACHINES[machine], TEXTS[text], 32, 8, drafts=False, staggered=True)
    assert drafted >= 0.92 * plain


@pytest.mark.costly
@pytest.mark.parametrize(("text", "times"), [("good", 2.3), ("medium", 4.8), ("useless", 7.0)])
def test_eight_texts_share_what_a_slow_disk_reads(text: str, times: float) -> None:
    """Guesses fill one text's pass with rows that eight texts share: a good draft brings eight
    texts less."""
    machine = MACHINES["50 %, 300 MB/s"]
    eight, _ = together(machine, TEXTS[text], 32, 8)
    one, _ = together(machine, TEXTS[text], 32, 1)
    assert eight >= times * one


HALF_OF_A_GIBIBYTE = Machine(AMD, step_s=0.003, read_s=2.56)
"""Half of 1 GiB in memory, read at 300 MB/s, and an embedded draft."""
FOR_EIGHT = replace(HALF_OF_A_GIBIBYTE, read_s=2.69)
"""The same under the plan for eight texts, which keeps fewer weights."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["good", "medium"])
def test_eight_short_texts_at_once_are_four_times_one(kind: str) -> None:
    """Alone, a text whose first guesses are all right needs three passes: others delay it most. A
    pass more or less moves the ratio by 0.3: of other eight texts it is 3.2 to 3.9."""
    text, n_tokens = TEXTS[kind], 24
    alone = [together(HALF_OF_A_GIBIBYTE, text, n_tokens, 1, first=n) for n in range(8)]
    eight, results = together(FOR_EIGHT, text, n_tokens, 8)
    alone_s = [n_tokens / rate for rate, _ in alone]
    assert eight >= 4.1 * 8 * n_tokens / sum(alone_s)
    slower = [seconds_of(result) / s for result, s in zip(results, alone_s, strict=True)]
    assert sum(slower) / 8 <= 1.5
    assert max(slower) <= 1.9


def seconds_of(result: GenerationResult) -> float:
    """Seconds from a text's beginning to its end."""
    return result.timings.prompt_s + result.timings.decode_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["good", "medium"])
def test_eight_texts_have_a_use_for_more_nodes_than_one(kind: str) -> None:
    """Three times eight texts: of each eight, the ratio moves from 0.99 to 1.16."""
    few, many = (
        sum(
            together(FOR_EIGHT, TEXTS[kind], 24, 8, first=first, max_nodes=n)[0]
            for first in (0, 8, 16)
        )
        for n in (TREE_SIZES[0], FOREST_SIZE)
    )
    assert many >= 1.02 * few
