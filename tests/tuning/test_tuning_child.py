"""Measurements of one process, on a model that computes by table."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.config import LoadSettings
from edgespec.engine.loop import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.memory.budget import MemoryPlan, SegmentSize
from edgespec.models.embedded import embedded_pair
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
    Written,
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


def test_a_text_ends_with_its_first_round_when_its_time_is_over():
    with Engine(counting(n_ctx=64)) as engine:
        result = child.write_until(engine, PROMPT, 20, time.monotonic() - 1)
    assert result.speculation.rounds == 1


def test_no_other_text_is_begun_when_the_time_is_over():
    with Engine(counting(n_ctx=64)) as engine:
        (result,) = child.write_texts(engine, [PROMPT] * 3, 20, time.monotonic() - 1)
    assert result.speculation.rounds == 1


def test_texts_for_which_there_is_time_are_whole():
    with Engine(counting(n_ctx=64)) as engine:
        results = child.write_texts(engine, [PROMPT] * 3, 12, time.monotonic() + LATER)
    assert [len(result.tokens) for result in results] == [12, 12, 12]


@pytest.mark.parametrize(("seconds", "n_texts"), [(2.5, 1), (3.5, 2), (5.5, 4), (60.0, 5)])
def test_fewer_texts_are_begun_where_each_would_have_little_time(
    seconds: float, n_texts: int, monkeypatch: pytest.MonkeyPatch
):
    """Each takes a second here, and two of them are the least that says anything."""
    monkeypatch.setattr(child, "_shortest_s", lambda _: 2.0)
    begun: list[object] = []
    monkeypatch.setattr(child, "write_until", lambda _, prompt, *__: begun.append(prompt))
    with Engine(counting(n_ctx=64)) as engine:
        child.write_texts(engine, [PROMPT] * 5, 9, seconds, lambda: float(len(begun)))
    assert len(begun) == n_texts


def test_a_token_that_came_with_the_prompt_took_no_time():
    text = Text(tuple(PROMPT), (1, 2, 3), decode_s=1.0, n_with_prompt=1)
    assert text.token_s == 0.5
    assert Written((text,), (), 0.0, 0, 0).tokens_per_s == 2.0


def test_plans_for_which_there_is_no_time_are_refused():
    load = LoadSettings(model=embedded_pair().draft, memory_budget="1GiB")
    rules = EngineSettings()
    first, second = child.surveyed(Survey(((load, rules), (load, rules)), seconds=0.0)).plans
    assert isinstance(first, MemoryPlan)
    assert second == Refused("there was no time to plan it", 0)
