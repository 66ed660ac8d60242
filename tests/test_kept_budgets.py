"""Processes of many kinds stay within the smallest budgets that are named for them, and write one
text under all. `tests/measure.py budgets` makes hundreds of them at random."""

from __future__ import annotations

import pytest

from measuring.budgets import DECODER, ENCODER, RandomRun, Runner

RUNS = (
    RandomRun("2k", 0.0, "greedy", "none", "several", "logprobs"),
    RandomRun("2k", 0.0, "chat", "draft", "chat", "changes"),
    RandomRun("2k", 0.0, "nucleus", "draft", "long", "prefixes"),
    RandomRun("2k", 0.0, "penalties", "draft", "several", "grammar"),
    RandomRun("2k", 0.0, "all tokens", "rejection", "short", "nothing"),
    RandomRun("152k", 0.0, "all tokens", "head", "short", "nothing"),
    RandomRun("152k", 0.0, "all tokens", "draft", "short", "logprobs"),
    RandomRun("152k", 0.7, "all tokens", "lookup", "short", "changes"),
    RandomRun("152k", 0.0, "nucleus", "rejection", "chat", "nothing"),
    RandomRun(ENCODER, 0.0, prompts="several"),
    RandomRun(DECODER, 0.0, prompts="long"),
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("budgets"), 12)


@pytest.mark.long
def test_a_dozen_processes_keep_their_budgets(runner: Runner) -> None:
    lines = [runner.run(run) for run in RUNS]
    assert runner.outcome.faults == [], "\n".join(lines)
    assert runner.differing() == []
