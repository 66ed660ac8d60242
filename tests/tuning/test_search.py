"""The search, on devices whose best settings are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, PairError
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning import measured_report, report
from edgespec.tuning.confirming import (
    FAIR_TOKENS,
    LEAST_TEXTS,
    LEAST_TOKENS,
    Trial,
    gain_of,
    length_of,
    noise_of,
)
from edgespec.tuning.cost_model import Choice, Prediction
from edgespec.tuning.gpu_runs import RunLength
from edgespec.tuning.measurements import Refused
from edgespec.tuning.search import tune
from tuning_lab import BETTER, DRAFT, MIB, SyntheticLab, wanted

USUAL, OTHER = Choice(DRAFT, 4), Choice(DRAFT, 2)
PREDICTED = Prediction(1.0, 1.0, 1, 1.0, 1.0, 1.0)


def best_of_grid(lab: SyntheticLab, *drafts: Path) -> float:
    """Tokens a second of the best of all settings, the true ones."""
    grid = itertools.product(drafts, (1, 2, 4), (None, 1, 2), (4, 8, 16, 32, 48, 64))
    drafted = (Choice(draft, threads, own, n) for draft, threads, own, n in grid)
    return max(lab.truth(choice).tokens_per_s for choice in (*drafted, Choice(None, 4)))


@pytest.mark.parametrize("disk", [30, 100, 300, 3000])
@pytest.mark.parametrize("node_s", [0.0005, 0.01])
def test_the_choice_is_within_a_twentieth_of_the_best(disk: int, node_s: float):
    lab = SyntheticLab(disk_bytes_per_s=disk * MIB, node_s=node_s)
    tuned = tune(lab, wanted(DRAFT, BETTER))
    assert lab.truth(tuned.chosen).tokens_per_s >= 0.95 * best_of_grid(lab, DRAFT, BETTER)


def test_buffers_that_cost_more_than_they_bring_make_smaller_trees():
    lab = SyntheticLab()
    tuned = tune(lab, wanted(DRAFT))
    assert tuned.chosen.draft_max in range(1, 48) and tuned.gain > 0.1


def test_where_plans_take_long_the_promising_settings_are_planned_first(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of each draft's settings those that are predicted best with the usual memory."""
    lab = SyntheticLab()
    plans, asked = lab.plans, []

    def two_at_most(settings: Sequence[tuple[LoadSettings, EngineSettings]], *_: float):
        asked.append([load.draft for load, _ in settings])
        late = [Refused("no time", 0)] * max(0, len(settings) - 2)
        return [*plans(settings[:2]), *late]

    monkeypatch.setattr(lab, "plans", two_at_most)
    tuned = tune(lab, wanted(DRAFT, BETTER))
    assert asked[-1][:2] == [DRAFT, BETTER]
    assert tuned.chosen.draft == BETTER


def test_the_better_of_two_drafts_is_chosen():
    assert tune(SyntheticLab(), wanted(DRAFT, BETTER)).chosen.draft == BETTER


def test_drafts_are_planned_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch):
    lab = SyntheticLab()
    planned = []

    def refuse(asked: Sequence[tuple[LoadSettings, EngineSettings]]) -> list[MemoryPlan]:
        planned.extend(load.draft for load, _ in asked)
        raise PairError("another vocabulary")

    monkeypatch.setattr(lab, "plans", refuse)
    with pytest.raises(PairError):
        tune(lab, wanted(DRAFT, BETTER))
    assert planned == [DRAFT, BETTER] and not lab.written


def test_a_draft_that_guesses_nothing_right_is_left_out():
    lab = SyntheticLab(alphas={DRAFT: 0.0}, draft_bytes=30 * MIB)
    assert tune(lab, wanted(DRAFT)).chosen.draft is None


def test_threads_that_stand_in_each_others_way_become_fewer():
    lab = SyntheticLab(disk_bytes_per_s=9000 * MIB, node_s=0.0001, contention=0.1)
    assert tune(lab, wanted(DRAFT)).chosen.threads < 4


def test_defaults_that_nothing_beats_stay():
    lab = SyntheticLab(node_bytes=0)
    tuned = tune(lab, wanted(DRAFT))
    assert tuned.is_usual


def test_a_gain_within_the_noise_is_none():
    lab = SyntheticLab(noise=(1.0, 0.5, 1.9, 0.7, 1.3))
    assert tune(lab, wanted(DRAFT)).is_usual


def test_the_defaults_are_always_among_the_confirmed():
    tuned = tune(SyntheticLab(), wanted(DRAFT))
    assert tuned.trials[0].choice == tuned.wanted.usual
    assert len(tuned.trials[0].rates) >= 2


def test_what_the_user_settled_stays():
    asked = wanted(DRAFT, settled=["draft_max", "threads"], threads=2)
    tuned = tune(SyntheticLab(), replace(asked, engine=EngineSettings(draft_max=40)))
    assert (tuned.chosen.threads, tuned.chosen.draft_max) == (2, 40)


def test_rules_that_are_not_chosen_among_hold_for_every_run():
    lab, rules = SyntheticLab(), EngineSettings(pacer="linear", max_depth=5)
    tuned = tune(lab, replace(wanted(DRAFT), engine=rules))
    engines = [trial.choice.engine for trial in tuned.trials]
    assert {(engine.pacer, engine.max_depth) for engine in engines} == {("linear", 5)}


def test_settings_that_change_the_prompts_batches_are_left_out_with_a_note():
    lab = SyntheticLab(batch_above=48)
    tuned = tune(lab, wanted(DRAFT))
    assert tuned.chosen.draft_max is None or tuned.chosen.draft_max >= 48
    assert any("batches of 128 tokens instead of 256" in note for note in tuned.notes)


def test_nothing_to_choose_among_is_no_error():
    tuned = tune(SyntheticLab(), wanted(settled=["threads"]))
    assert tuned.is_usual and tuned.best.rates


def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not():
    with pytest.raises(BudgetError) as refused:
        tune(SyntheticLab(), wanted(DRAFT, memory_budget=MIB))
    assert refused.value.smallest_bytes == 53 * MIB


def test_time_that_is_over_leaves_two_turns():
    tuned = tune(SyntheticLab(left_s=0.0), wanted(DRAFT))
    assert {len(trial.rates) for trial in tuned.trials} == {2}


def test_a_turn_that_was_disturbed_does_not_decide():
    """Both runs of a turn beside other work: one of them a tenth as fast as it should be."""
    usual, better = Trial(USUAL, PREDICTED, [10, 9, 11, 8]), Trial(OTHER, PREDICTED, [11, 1, 12, 9])
    assert gain_of(better, usual) > 3 * noise_of(better, usual)


def test_a_turn_beside_other_work_is_run_again():
    calm = SyntheticLab(run_s=1.0)
    quiet = tune(calm, wanted(DRAFT))
    others = [0.0] * 200
    others[len(calm.written) - 1] = 0.6  # in the last turn
    tuned = tune(SyntheticLab(run_s=1.0, others=others), wanted(DRAFT))
    assert [trial.rates for trial in tuned.trials] == [trial.rates for trial in quiet.trials]


def test_other_work_that_does_not_end_is_said():
    tuned = tune(SyntheticLab(run_s=1.0, others=(0.35,)), wanted(DRAFT))
    assert tuned.trials[0].rates
    assert any("35% of the cores" in line for line in report.lines(tuned))


def test_a_run_short_of_time_continues_fewer_texts_and_not_fewer_tokens():
    measured = tune(SyntheticLab(), wanted(DRAFT)).measured
    six = replace(measured, first=replace(measured.first, texts=measured.first.texts * 6))
    long, short = (length_of(six, six.run_s(n, FAIR_TOKENS)) for n in (6, 4))
    assert (long.n_texts, short.n_texts) == (6, 4)
    assert min(long.n_tokens, short.n_tokens) >= FAIR_TOKENS - 1
    assert length_of(six, 100.0).n_tokens > FAIR_TOKENS
    hasty = length_of(six, 0.1)
    assert (hasty.n_texts, hasty.n_tokens) == (LEAST_TEXTS, LEAST_TOKENS)


def test_a_run_short_of_time_has_some_rounds_of_each_text():
    """Where a pass brings ten tokens, texts of eight would say nothing."""
    measured = tune(SyntheticLab(), wanted(DRAFT)).measured
    long_rounds = tuple(replace(cost, n_tokens=10) for cost in measured.first.rounds)
    guessed = replace(measured, first=replace(measured.first, rounds=long_rounds))
    assert length_of(guessed, 0.1).n_tokens == 20


@pytest.mark.parametrize(
    ("n_texts", "n_tokens", "confirmed"), [(1, 300, 0.5), (2, 300, 1.0), (1, 900, 1.0), (1, 9, 1.0)]
)
def test_only_runs_of_as_much_text_confirm_a_prediction(
    n_texts: int, n_tokens: int, confirmed: float
):
    """The first run wrote 300 tokens of a text, nearly."""
    tuned = tune(SyntheticLab(), wanted(DRAFT))
    usual = tuned.trials[0]
    slower = Trial(usual.choice, usual.predicted, [usual.predicted.tokens_per_s / 2])
    length = RunLength(n_texts, n_tokens, most_s=1.0)
    found = replace(tuned, trials=(slower,), length=length)
    assert found.confirmed == pytest.approx(confirmed)


def test_runs_that_take_too_long_are_not_made():
    """A pass of 50 MiB at 2 MiB a second: two turns of two runs of two passes are 200 seconds."""
    lab = SyntheticLab(disk_bytes_per_s=2 * MIB, left_s=90.0)
    tuned = tune(lab, wanted(DRAFT))
    assert tuned.is_usual and len(lab.written) == 1
    assert tuned.best.tokens_per_s == tuned.measured.first.tokens_per_s


def test_a_run_that_wrote_little_is_told_apart():
    measured = tune(SyntheticLab(), wanted(DRAFT)).measured
    text = replace(measured.first.texts[0], tokens=(1, 2))
    short = replace(measured, first=replace(measured.first, texts=(text,)))
    said = "little to predict from"
    assert any(said in line for line in measured_report.lines(short))
    assert not any(said in line for line in measured_report.lines(measured))


def test_what_could_not_run_is_said_and_not_chosen():
    tuned = tune(SyntheticLab(disk_bytes_per_s=2 * MIB, left_s=90.0), wanted(DRAFT, BETTER))
    assert tuned.untried and tuned.untried.choice.draft == BETTER
    for lines in (report.lines(tuned), report.preset_reasons(tuned, "", "")):
        assert any("no time to confirm" in line for line in lines)


def test_what_was_slower_makes_room_for_others():
    calm = SyntheticLab()
    found = tune(calm, wanted(DRAFT)).trials[1]
    noise = [1.0] * 100
    noise[1 + calm.written.index(found.choice)] = 0.5
    again = tune(SyntheticLab(noise=noise), wanted(DRAFT)).trials[1]
    assert len(found.rates) > 2 and len(again.rates) == 1


def test_without_a_draft_guesses_from_the_text_are_chosen_where_they_pay():
    tuned = tune(SyntheticLab(lookup_alpha=0.5), wanted())
    assert tuned.chosen.lookup and tuned.gain > 0.3
    assert report.preset_settings(tuned)["lookup"] is True


def test_guesses_from_the_text_that_stand_as_often_as_the_drafts_leave_its_memory_to_the_target():
    lab = SyntheticLab(alphas={DRAFT: 0.5}, lookup_alpha=0.5, draft_bytes=30 * MIB)
    chosen = tune(lab, wanted(DRAFT)).chosen
    assert chosen.draft is None and chosen.lookup


def test_lookups_that_were_refused_are_not_tried():
    tuned = tune(SyntheticLab(lookup_alpha=0.9), wanted(settled=["lookup"]))
    assert tuned.is_usual and not tuned.chosen.guesses


def test_lookups_that_were_asked_for_stay():
    asked = replace(wanted(DRAFT, settled=["lookup"]), engine=EngineSettings(lookup=True))
    tuned = tune(SyntheticLab(), asked)
    assert {trial.choice.lookup for trial in tuned.trials} == {True}
