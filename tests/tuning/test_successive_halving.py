"""Successive halving of settings, whose speeds are given by formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec import runtimes
from edgespec.engine.settings import EngineSettings
from edgespec.errors import EdgespecError
from edgespec.settings.config import LoadSettings
from edgespec.tuning import report
from edgespec.tuning.candidates import Candidate, TuningJob, candidates
from edgespec.tuning.successive_halving import TrialLength, TuningResult, label, tune
from edgespec.tuning.trial import TrialFigures
from formula_trials import BUDGET, FormulaTrialRunner, figures

DRAFT, BETTER = Path("draft.gguf"), Path("better.gguf")


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are names here."""
    monkeypatch.setattr(runtimes, "find", lambda _: SimpleNamespace(gpu=lambda: None))


def job(*drafts: Path, fixed: tuple[str, ...] = ()) -> TuningJob:
    load = LoadSettings.model_validate(
        {"model": "big.gguf", "memory_budget": BUDGET, "draft": (*drafts, None)[0]}
    )
    return TuningJob(load, EngineSettings(), drafts, default_threads=4, fixed=frozenset(fixed))


def tuned(
    speed: Callable[[Candidate], float], *drafts: Path, seconds: float = 200.0
) -> TuningResult:
    return tune(FormulaTrialRunner(speed, seconds), job(*(drafts or (DRAFT,))), BUDGET)


def test_the_defaults_run_first_and_stay_where_nothing_is_faster() -> None:
    found = tuned(lambda _: 5.0)
    assert found.is_default and found.defaults.candidate == found.job.defaults


@pytest.mark.parametrize(
    ("faster", "flag"),
    [
        (lambda c: c.draft is None and not c.changed["lookup"], "--no-draft"),
        (lambda c: c.draft is None and c.changed["lookup"], "--no-draft --lookup"),
        (lambda c: c.changed.get("no_overlap"), "--no-overlap"),
        (lambda c: c.changed.get("draft_max") == 8, "--draft-max 8"),
        (lambda c: c.changed.get("threads") == 2, "-t 2"),
        (lambda c: c.changed.get("threads_draft") == 2, "-td 2"),
        (lambda c: c.draft and c.changed.get("lookup") is False, "--no-lookup"),
    ],
)
def test_the_fastest_wins(faster: Callable[[Candidate], bool], flag: str) -> None:
    found = tuned(lambda c: 6.0 if faster(c) else 5.0)
    assert label(found.winner.candidate, found.job.defaults) == flag
    assert found.gain == pytest.approx(0.2)


def test_the_better_of_two_drafts_wins() -> None:
    found = tuned(lambda c: 7.0 if c.draft == BETTER else 5.0, DRAFT, BETTER)
    assert found.winner.candidate.draft == BETTER


def test_however_short_the_time_every_draft_is_tried() -> None:
    drafts = [DRAFT, *(Path(f"{n}.gguf") for n in range(4)), BETTER]
    found = tuned(lambda c: 7.0 if c.draft == BETTER else 5.0, *drafts, seconds=3.0)
    assert found.winner.candidate.draft == BETTER
    assert {one.candidate.draft for one in found.trials if one.runs} == {*drafts}


def test_two_that_are_faster_alone_are_tried_together() -> None:
    def speed(candidate: Candidate) -> float:
        return (
            5.0
            * (1.1 if "no_overlap" in candidate.changed else 1)
            * (1.2 if candidate.changed.get("threads") == 2 else 1)
        )

    assert tuned(speed).winner.candidate.changed == {"no_overlap": True, "threads": 2}


def test_a_gain_within_the_noise_changes_nothing() -> None:
    turns = iter([5.0, *[4.0, 7.0] * 200])
    assert tuned(lambda _: next(turns)).is_default


def test_what_the_user_gave_stays() -> None:
    fixed = job(DRAFT, fixed=("threads", "no_overlap"))
    changed = {name for one in candidates(fixed) for name in one.settings(fixed.defaults)}
    assert "threads" not in changed and "no_overlap" not in changed and "draft_max" in changed


def test_a_model_without_a_draft_is_tuned_too() -> None:
    runner = FormulaTrialRunner(lambda c: 9.0 if "lookup" in c.changed else 5.0)
    found = tune(runner, job(), BUDGET)
    assert found.winner.candidate.changed == {"lookup": True}


def test_a_run_that_fails_leaves_with_its_reason() -> None:
    class Failing(FormulaTrialRunner):
        def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
            if "no_overlap" in candidate.changed:
                raise EdgespecError("no room")
            return super().run(job, candidate, length)

    found = tune(Failing(lambda _: 5.0), job(DRAFT), BUDGET)
    assert "left out: no room" in "\n".join(report.report(found).lines())


def test_a_run_above_the_budget_cannot_win() -> None:
    class Large(FormulaTrialRunner):
        def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
            self.ran.append(candidate)
            if candidate.changed.get("threads") == 2:
                return figures(50.0, 2 * BUDGET)
            return figures(5.0)

    assert tune(Large(lambda _: 5.0), job(DRAFT), BUDGET).is_default


def test_it_ends_with_the_time() -> None:
    runner = FormulaTrialRunner(lambda c: 5.0 + len(c.changed), seconds=12.0)
    found = tune(runner, job(DRAFT), BUDGET)
    assert len(runner.ran) <= 16
    assert any(not one.runs for one in found.trials)


def test_a_busy_machine_is_said() -> None:
    class Busy(FormulaTrialRunner):
        def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
            self.ran.append(candidate)
            return figures(5.0, others=0.4)

    assert "up to 40% of the cores" in "\n".join(
        report.report(tune(Busy(lambda _: 5.0), job(DRAFT), BUDGET)).lines()
    )


def test_what_the_plan_notes_is_said() -> None:
    """Layers on RPC servers, and their distance, were known and kept back."""

    class Noting(FormulaTrialRunner):
        def run(self, job: TuningJob, candidate: Candidate, length: TrialLength) -> TrialFigures:
            return replace(super().run(job, candidate, length), notes=("a server holds 5 layers",))

    found = tune(Noting(lambda _: 5.0), job(DRAFT), BUDGET)
    assert "note: a server holds 5 layers" in report.report(found).lines()


def test_what_means_nothing_without_guesses_is_left_out_of_a_combination() -> None:
    alone, beside = Candidate(None), Candidate(DRAFT, {"no_overlap": True, "threads": 2})
    both = alone.combined(beside, job(DRAFT).defaults)
    assert both.settings(job(DRAFT).defaults) == {"no_draft": True, "threads": 2}


def test_a_preset_says_what_differs() -> None:
    found = tuned(lambda c: 6.0 if "no_overlap" in c.changed else 5.0)
    settings = report.preset_settings(found)
    assert settings["no_overlap"] is True and "threads" not in settings
    assert settings["draft"].name == DRAFT.name


def test_a_preset_without_a_draft_says_so() -> None:
    settings = report.preset_settings(tuned(lambda c: 6.0 if c.draft is None else 5.0))
    assert settings["no_draft"] is True and "draft" not in settings


def test_programs_get_every_trial() -> None:
    found = tuned(lambda _: 5.0)
    told = report.report(found).as_dict()
    assert told["trials"][0]["flags"] == "defaults"
    assert len(told["trials"]) == len(found.trials)
