"""Measurements of one process, on a model that computes by table."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from edgespec.config import LoadSettings
from edgespec.engine.loop import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan, SegmentSize
from edgespec.tuning import child
from edgespec.tuning.measurements import (
    MESSAGES,
    AskGpus,
    GpusFound,
    ModelGpu,
    Refused,
    Survey,
    Surveyed,
    Text,
)
from edgespec.tuning.replays import replay_lookups, replay_trees, trust_in
from engine_cases import PROMPT, counting

TEXT = Text(tuple(PROMPT), tuple(n % 10 for n in range(20)))
LATER = 60.0


def test_jobs_and_answers_survive_their_json():
    plan = MemoryPlan(9, (), (SegmentSize("a", 3, 4),), frozenset({0}), 4, True, 5)
    load = LoadSettings(
        model="m", memory_budget="50%", threads_draft=2, draft="d", cache_type_k="q8_0"
    )
    survey = Survey(((load, EngineSettings(draft_max=7)),))
    for value in (survey, Surveyed((plan, Refused("no", 3)), (Path("m"),))):
        assert MESSAGES.from_json(MESSAGES.to_json(value)) == value


def test_what_a_gpu_is_asked_and_answers_survives_its_json():
    asked = AskGpus((Path("big.gguf"),), 4, 0.5)
    found = GpusFound((ModelGpu(Path("big.gguf"), "gguf", "a GPU", 24, 4, 1e9),))
    for value in (asked, found):
        assert MESSAGES.from_json(MESSAGES.to_json(value)) == value


def test_a_draft_that_agrees_fills_its_trees():
    small, large = replay_trees(counting(n_ctx=64), [TEXT], (1, 4), LATER)
    assert (small.drafted_nodes, large.drafted_nodes) == (1, 4)
    assert 1.8 < small.tokens_per_pass <= 2 and large.tokens_per_pass > 3


def test_a_text_that_repeats_is_guessed_without_a_draft():
    again = Text(tuple(PROMPT), tuple(n % 5 for n in range(40)))
    (found,) = replay_lookups(counting(n_ctx=64), [again], (4,))
    assert found.drafted_nodes == 4 and found.tokens_per_pass > 2


def test_guesses_without_a_draft_take_no_room_for_a_whole_vocabulary():
    target = counting(n_ctx=64)
    target.info = replace(target.info, n_vocab=1 << 40)
    assert replay_lookups(target, [TEXT], (4,))


def test_what_it_is_sure_of_is_counted_by_confidence():
    (trust,) = trust_in(counting(n_ctx=64), [TEXT])
    assert (trust.least_confidence, trust.n_guesses, trust.n_right) == (0.9, 20, 20)


def test_passes_are_timed_once_for_each_number_of_nodes():
    model = counting(n_ctx=64)
    model.prefill(PROMPT)
    timings = child.time_passes(model, (1, 4, 1000), time.monotonic() + LATER, n_times=1)
    assert [timing.n_nodes for timing in timings] == [1, 4, model.info.max_nodes]
    assert model.n_provisional == 0


def test_passes_are_timed_again_only_while_there_is_time():
    timings = child.time_passes(counting(n_ctx=64), (1, 4), time.monotonic() - 1)
    assert [timing.n_nodes for timing in timings] == [1, 4]


def test_slow_passes_are_timed_at_the_ends_alone():
    timings = child.time_passes(counting(n_ctx=64), (1, 2, 3, 4), time.monotonic() - 1)
    assert [timing.n_nodes for timing in timings] == [1, 4]


def test_a_text_ends_when_its_time_is_over():
    with Engine(counting(n_ctx=64)) as engine:
        result = child.write_until(engine, PROMPT, 20, time.monotonic() - 1)
    assert len(result.tokens) == 1
