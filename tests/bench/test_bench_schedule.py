"""The order of runs, and what may be set."""

from __future__ import annotations

from collections import Counter

from bench_rows import KNOWN
from edgespec.bench.bench_runs import RAW, scheduled_runs
from edgespec.bench.modes import ENGINE_MODES, choose


def test_every_mode_and_the_raw_reads_have_a_turn_per_prompt_and_repetition():
    due = list(scheduled_runs([RAW, "a", "b"], 3, 2))
    assert Counter(turn.mode for turn in due) == {"a": 6, "b": 6, RAW: 6}
    assert len(set(due)) == len(due)


def test_modes_of_one_prompt_and_repetition_run_one_after_the_other():
    due = list(scheduled_runs([RAW, "a", "b"], 2, 2))
    for at in range(0, len(due), 3):
        assert len({(turn.prompt, turn.repetition) for turn in due[at : at + 3]}) == 1


def test_no_mode_is_always_first():
    due = list(scheduled_runs([RAW, "a", "b"], 3, 1))
    assert {due[at].mode for at in range(0, len(due), 3)} == {"a", "b", RAW}


def test_modes_come_in_the_order_in_which_they_are_known():
    assert [mode.name for mode in choose(["auto", " mmap"], KNOWN)] == ["mmap", "auto"]
    assert choose(None, KNOWN) == KNOWN


def test_modes_with_hardly_a_token_a_pass_are_the_slow_ones():
    assert [mode.name for mode in KNOWN if mode.is_slow] == ["mmap", "paged"]


def test_ablations_never_leave_their_rules():
    whole = {"paged", "lookup", "auto-draft", "auto"}
    fixed = [mode for mode in ENGINE_MODES if mode.name not in whole]
    assert all(mode.engine and not mode.engine.step_aside for mode in fixed)
    assert not [mode.name for mode in fixed if mode.engine and not mode.engine.no_overlap]
