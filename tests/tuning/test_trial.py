"""Trials: texts written in a process of its own, within the budget."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError
from edgespec.jobs.launching import launch
from edgespec.models.embedded import embedded_pair
from edgespec.ports.text_request import TextRequest
from edgespec.rules.sampling import SamplingParams
from edgespec.session.opening import plan
from edgespec.settings.config import LoadSettings
from edgespec.tuning.trial import TrialFigures, TuningTrial, plan_trial, run_trial, write_texts
from edgespec_runtimes.gguf.options import GgufOptions

BUDGET = 200 << 20


@pytest.fixture(autouse=True)
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process is larger than the command's."""
    monkeypatch.setattr("edgespec.tuning.trial.own_bytes", lambda: 0)


def trial(budget: int = BUDGET) -> TuningTrial:
    pair = embedded_pair()
    load = LoadSettings(model=pair.target, draft=pair.draft, memory_budget=budget, ctx_size=256)
    prompts = ("import os\n", "class Queue:\n")
    return TuningTrial(load, EngineSettings(remember=False), prompts, n_tokens=6, seconds=20.0)


@pytest.fixture(scope="module")
def figures() -> TrialFigures:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.tuning.trial.own_bytes", lambda: 0)
        return run_trial(trial())


@pytest.mark.slow
def test_a_trial_reports_its_figures_within_the_budget(figures: TrialFigures) -> None:
    assert (figures.n_texts, figures.n_tokens) == (2, 12)
    assert figures.tokens_per_s > 0 and figures.tokens_per_pass >= 1
    assert figures.peak_bytes <= BUDGET


def test_a_trial_samples_as_its_job_says(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = SamplingParams(temperature=0.8, seed=3)
    written: list[SamplingParams] = []
    admit = Engine.admit

    def watched(engine: Engine, text: TextRequest) -> object:
        written.append(text.sampling)
        return admit(engine, text)

    monkeypatch.setattr(Engine, "admit", watched)
    load = LoadSettings(model=embedded_pair().target, ctx_size=64)
    write_texts(TuningTrial(load, EngineSettings(), ("import os\n",), 2, 10.0, warm))
    assert written == [warm]


def test_a_prompt_that_the_context_has_no_room_for_is_cut() -> None:
    """`tune -c 128` and `doctor -m` called their own prompts too long."""
    load = LoadSettings(model=embedded_pair().target, ctx_size=64)
    prompts = ("import os\n" * 64,)
    assert write_texts(TuningTrial(load, EngineSettings(), prompts, 8, 10.0)).n_tokens == 8


@pytest.mark.slow
def test_a_budget_that_is_too_small_is_refused_as_everywhere() -> None:
    with pytest.raises(BudgetError) as refused:
        run_trial(trial(1 << 20))
    assert refused.value.smallest_bytes


@pytest.mark.slow
def test_options_of_a_runtime_reach_the_process() -> None:
    job = trial()
    options = {"gguf": GgufOptions(cache_type_k="q8_0")}
    load = job.load.model_copy(update={"options": options})
    sent = launch(partial(replace, job, load=load)).result
    assert GgufOptions.of(sent.load.options["gguf"]).cache_type_k == "q8_0"
    assert sent.load.as_given() == load.as_given()


@pytest.mark.slow
def test_a_layer_that_loading_leaves_out_is_no_draft_to_try(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from zoo_files import write_guessing

    model = write_guessing(tmp_path / "m.gguf", "qwen35")
    load = LoadSettings(model=model, draft=model, memory_budget="8GiB")
    least = [plan(each).smallest_bytes for each in (load.model_copy(update={"draft": None}), load)]
    between = load.model_copy(update={"memory_budget": f"{sum(least) // 2}B"})
    with pytest.raises(ModelError, match="does not guess for itself"):
        write_texts(TuningTrial(between, EngineSettings(), ("Hello",), 2, 10.0))


@pytest.mark.slow
def test_figures_survive_the_pipe() -> None:
    figures = TrialFigures(1.0, 2.0, 3, 4, 0.5, 0.1, 0.0, 1.0, 5, 6, None, ("note",))
    assert launch(partial(replace, figures)).result == figures


def test_a_budget_that_is_too_small_names_what_both_processes_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It named what the measured process needs, beside a budget of 0 MiB."""

    def refuse(*args: object) -> None:
        raise BudgetError("the memory budget of 0 MiB is too small", 85 << 20)

    monkeypatch.setattr("edgespec.tuning.trial.launch", refuse)
    monkeypatch.setattr("edgespec.tuning.trial.own_bytes", lambda: 15 << 20)
    job = trial()
    given = job.load.model_copy(update={"memory_budget": "10MiB"})
    with pytest.raises(BudgetError, match=r"takes 15.0 MiB .* both need 100 MiB; the memory") as it:
        plan_trial(given, job.engine)
    assert it.value.smallest_bytes == 100 << 20
    given = job.load.model_copy(update={"memory_budget": "auto"})
    with pytest.raises(BudgetError, match=r"^the memory budget of 0 MiB"):
        plan_trial(given, job.engine)


@pytest.mark.slow
def test_a_plan_comes_from_a_process_like_a_trials(figures: TrialFigures) -> None:
    job = trial()
    plan = plan_trial(job.load, job.engine)
    assert plan.paged is False and plan.budget_bytes == BUDGET
    assert figures.peak_bytes <= plan.budget_bytes
