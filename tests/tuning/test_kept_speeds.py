"""What tuning measured, found again by `plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.config import LoadSettings
from edgespec.engine.settings import EngineSettings
from edgespec.files import cache_folder
from edgespec.memory.budget import MemoryPlan
from edgespec.tuning import kept_speeds
from edgespec.tuning.measurements import ReadSpeed
from edgespec.tuning.measuring import Measured, measure
from tuning_lab import MIB, SyntheticLab, wanted

pytestmark = pytest.mark.usefixtures("own_cache_folder")

DISK = 100.0 * MIB
RULES = EngineSettings()


@pytest.fixture
def lab(tmp_path: Path) -> SyntheticLab:
    for name in ("big.gguf", "small.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return SyntheticLab(alphas={tmp_path / "small.gguf": 0.7})


@pytest.fixture
def measured(lab: SyntheticLab, tmp_path: Path) -> Measured:
    (draft,) = lab.alphas
    found = measure(lab, wanted(draft, model=tmp_path / "big.gguf", threads=2))
    kept_speeds.keep(found)
    return found


def plan_of(lab: SyntheticLab, load: LoadSettings) -> MemoryPlan:
    (plan,) = lab.plans([(load, RULES)])
    assert isinstance(plan, MemoryPlan)
    return plan


def test_the_same_budget_is_predicted_as_when_it_was_measured(measured: Measured):
    found = kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(measured.expected.tokens_per_s)


def test_a_disk_that_was_bound_is_predicted_by_the_same_bound(measured: Measured):
    """Reads came to 100 of 105 MiB/s, and would again."""
    bound = 1.05 * DISK
    kept_speeds.keep(measured, bound_bytes_per_s=bound)
    found = kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, bound)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(measured.expected.tokens_per_s)


def test_plain_reads_that_fell_short_of_passes_make_no_disk_faster(measured: Measured):
    slow = replace(measured, reads=(ReadSpeed(4 * MIB, 1, 0.8 * DISK),))
    kept_speeds.keep(slow)
    found = kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(measured.expected.tokens_per_s)


def test_a_bound_that_was_not_reached_decides_nothing(measured: Measured):
    kept_speeds.keep(measured, bound_bytes_per_s=2 * DISK)
    found = kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(measured.expected.tokens_per_s)


@pytest.mark.parametrize("disk", [30.0 * MIB, 100.0 * MIB, 300.0 * MIB])
@pytest.mark.parametrize("budget", [70 * MIB, 100 * MIB, 130 * MIB])
def test_another_budget_and_disk_are_within_15_percent(
    lab: SyntheticLab, measured: Measured, disk: float, budget: int
):
    load = measured.wanted.load.model_copy(update={"memory_budget": budget})
    found = kept_speeds.predicted(load, RULES, plan_of(lab, load), disk)
    there = replace(lab, disk_bytes_per_s=disk).truth(measured.wanted.usual, load)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(there.tokens_per_s, rel=0.15)


def test_passes_that_compute_are_not_predicted_from_passes_that_waited(measured: Measured):
    assert kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, 30 * DISK) is None


def test_the_target_alone_is_predicted_too(lab: SyntheticLab, measured: Measured):
    load = LoadSettings.model_validate(measured.wanted.load.as_given() | {"draft": None})
    found = kept_speeds.predicted(load, RULES, plan_of(lab, load), DISK)
    assert found is not None and found.n_nodes == 0
    alone = replace(measured.wanted.usual, draft=None)
    assert found.tokens_per_s == pytest.approx(lab.truth(alone, load).tokens_per_s, rel=0.01)


def test_runs_that_confirm_correct_the_prediction(measured: Measured):
    kept_speeds.keep(measured, confirmed=0.5)
    found = kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(0.5 * measured.expected.tokens_per_s)


def test_the_run_whose_passes_read_for_about_as_long_predicts(
    lab: SyntheticLab, measured: Measured
):
    load = measured.wanted.load
    slow = replace(
        measured,
        reads=(ReadSpeed(4 * MIB, 1, DISK / 10),),
        speeds=replace(measured.speeds, disk_bytes_per_s=DISK / 10),
    )
    kept_speeds.keep(slow, confirmed=0.5)
    near, far = (
        kept_speeds.predicted(load, RULES, measured.plan, disk) for disk in (DISK, DISK / 9)
    )
    assert near is not None and far is not None
    there = replace(lab, disk_bytes_per_s=DISK / 9).truth(measured.wanted.usual, load)
    assert near.tokens_per_s == pytest.approx(measured.expected.tokens_per_s, rel=0.01)
    assert far.tokens_per_s == pytest.approx(0.5 * there.tokens_per_s, rel=0.15)


def test_threads_that_were_not_measured_are_not_predicted(measured: Measured):
    load = measured.wanted.load.model_copy(update={"threads": 7})
    assert kept_speeds.predicted(load, RULES, measured.plan, DISK) is None


def test_resident_weights_say_nothing_of_paged_ones(measured: Measured):
    plan = replace(measured.plan, paged=False)
    assert kept_speeds.predicted(measured.wanted.load, RULES, plan, None) is None


def test_a_draft_on_the_gpu_is_predicted_by_what_it_took_there(tmp_path: Path, lab: SyntheticLab):
    fast = replace(lab, gpu_step_s=lab.step_s / 10, disk_bytes_per_s=30 * DISK)
    (draft,) = lab.alphas
    found = measure(fast, wanted(draft, model=tmp_path / "big.gguf", threads=2))
    kept_speeds.keep(found)
    ((_, offload, _),) = found.offloaded
    load = found.wanted.load
    usual = kept_speeds.predicted(load, RULES, found.plan, 30 * DISK)
    there = kept_speeds.predicted(offload.added_to(load), RULES, found.plan, 30 * DISK)
    assert usual is not None and there is not None
    assert there.draft_s == pytest.approx(
        usual.draft_s * there.n_nodes / usual.n_nodes * fast.gpu_step_s / (2 * lab.step_s)
    )


def test_layers_of_the_target_on_a_gpu_are_not_predicted_from_runs_without(measured: Measured):
    load = LoadSettings.model_validate(measured.wanted.load.as_given() | {"n_gpu_layers": 3})
    assert kept_speeds.predicted(load, RULES, measured.plan, DISK) is None


def test_a_model_that_was_replaced_is_another_one(measured: Measured):
    measured.wanted.load.model.write_bytes(b"GGUF and more")
    assert kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK) is None


def test_a_file_that_cannot_be_read_is_as_good_as_none(measured: Measured):
    for path in cache_folder.tuned().glob("*.speeds.json"):
        path.write_text("{")
    assert kept_speeds.predicted(measured.wanted.load, RULES, measured.plan, DISK) is None


def test_a_folder_that_cannot_be_written_is_no_error(measured: Measured):
    folder = cache_folder.tuned()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    kept_speeds.keep(measured)


@pytest.mark.parametrize(("room", "is_predicted"), [(40, True), (45, True), (20, False)])
def test_a_mixture_is_predicted_where_as_many_experts_stay(
    measured: Measured, room: int, is_predicted: bool
):
    kept_speeds.keep(replace(measured, plan=replace(measured.plan, expert_bytes=40 * MIB)))
    plan = replace(measured.plan, expert_bytes=room * MIB)
    found = kept_speeds.predicted(measured.wanted.load, RULES, plan, DISK)
    assert (found is not None) == is_predicted
