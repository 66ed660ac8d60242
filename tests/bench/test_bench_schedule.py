"""The order of runs, and what may be set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from edgespec.bench import bench_runs
from edgespec.bench.bench_runs import RAW, Bench, scheduled_runs, survey
from edgespec.bench.bench_settings import BenchSettings
from edgespec.bench.modes import ENGINE_MODES, choose, known_modes
from edgespec.errors import UsageError
from edgespec.ports.baselines import Baseline
from edgespec.settings.base import in_flags
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_duration

KNOWN = known_modes(
    [
        Baseline("mmap", "mapped"),
        Baseline("resident", "kept", resident=True),
        Baseline("line", "a line of guesses", drafts=True),
    ]
)


def test_every_mode_and_the_raw_reads_have_a_turn_per_prompt_and_repetition():
    due = list(scheduled_runs([RAW, "a", "b"], 3, 2))
    assert Counter(turn.mode for turn in due) == {"a": 6, "b": 6, RAW: 6}
    assert len(set(due)) == len(due)


def test_modes_of_one_prompt_and_repetition_run_one_after_the_other():
    due = list(scheduled_runs([RAW, "a", "b"], 2, 2))
    for at in range(0, len(due), 3):
        assert len({(turn.prompt, turn.repetition) for turn in due[at : at + 3]}) == 1


def test_planning_is_shown_while_it_lasts(monkeypatch: pytest.MonkeyPatch):
    def launched(job: object, tick: Callable[[], None]) -> int:
        tick()
        return 0

    shown: list[tuple[str, float]] = []
    monkeypatch.setattr(bench_runs, "launch", launched)
    bench = Bench(BenchSettings(), LoadSettings(model="big.gguf"), [], [], 0)
    survey(bench, lambda what, share: shown.append((what, share)))
    assert shown == [("planning", 0.0)]


def test_no_mode_is_always_first():
    due = list(scheduled_runs([RAW, "a", "b"], 3, 1))
    assert {due[at].mode for at in range(0, len(due), 3)} == {"a", "b", RAW}


@pytest.mark.parametrize(
    ("seconds", "text"), [(40.2, "40 s"), (720, "12 min"), (7500, "2 h 5 min")]
)
def test_durations_are_said_as_people_do(seconds: float, text: str):
    assert format_duration(seconds) == text


def test_modes_come_in_the_order_in_which_they_are_known():
    assert [mode.name for mode in choose(["auto", " mmap"], KNOWN)] == ["mmap", "auto"]
    assert choose(None, KNOWN) == KNOWN


def test_an_unknown_mode_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="'pagd'; did you mean 'paged'"):
        choose(["pagd"], KNOWN)


def test_modes_with_hardly_a_token_a_pass_are_the_slow_ones():
    assert [mode.name for mode in KNOWN if mode.is_slow] == ["mmap", "paged"]


def test_ablations_never_leave_their_rules():
    whole = {"paged", "lookup", "auto-draft", "auto"}
    fixed = [mode for mode in ENGINE_MODES if mode.name not in whole]
    assert all(mode.engine and not mode.engine.step_aside for mode in fixed)
    assert not [mode.name for mode in fixed if mode.engine and not mode.engine.no_overlap]


def test_slow_modes_get_no_more_tokens_than_the_others():
    assert BenchSettings(max_tokens=4).tokens_of(is_slow=True) == 4
    assert BenchSettings().tokens_of(is_slow=True) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetitions": 0}, "--repetitions 0"),
        ({"max_tokens": "many"}, "--n-predict many"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object], message: str):
    with pytest.raises(UsageError) as refusal:
        BenchSettings.model_validate(settings)
    assert message in in_flags(str(refusal.value))
