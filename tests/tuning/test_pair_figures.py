"""Figures of a run, saved for predictions of `plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.files import cache_folder
from edgespec.memory.budget import MemoryPlan
from edgespec.memory.pinning import SegmentSize
from edgespec.settings.config import LoadSettings
from edgespec.tuning import pair_figures
from edgespec.tuning.pair_figures import PairFigures
from edgespec.tuning.trial import TrialFigures

pytestmark = pytest.mark.usefixtures("own_cache_folder")

MIB = 1 << 20
DISK = 100.0 * MIB
RUN = TrialFigures(8.0, 4.0, 96, 2, 0.6, 0.2, 0.05, 1.0, 0, 50 * MIB, DISK)


def plan(streamed_mib: int, paged: bool = True) -> MemoryPlan:
    layers = (SegmentSize("layer", streamed_mib * MIB, streamed_mib * MIB),)
    return MemoryPlan(100 * MIB, (), layers, frozenset(), MIB, paged, MIB)


@pytest.fixture
def load(tmp_path: Path) -> LoadSettings:
    for name in ("big.gguf", "small.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return LoadSettings(model=tmp_path / "big.gguf", draft=tmp_path / "small.gguf")


def figures(streamed_mib: int = 50) -> PairFigures:
    return PairFigures.of(RUN, plan(streamed_mib), DISK)


def test_a_run_predicts_itself(load: LoadSettings) -> None:
    pair_figures.save(load, plan(50), figures())
    found = pair_figures.predicted(load, plan(50), DISK)
    assert found is not None
    assert found.tokens_per_s == pytest.approx(RUN.tokens_per_pass / RUN.round_s)


def test_a_pass_takes_its_reads_or_its_computing(load: LoadSettings) -> None:
    slow, fast = (figures().predict(plan(50), rate) for rate in (DISK / 2, 100 * DISK))
    assert slow.tokens_per_s == pytest.approx(4 / (1.0 + 0.1)) and "storage" in slow.limit
    assert fast.tokens_per_s == pytest.approx(4 / (0.2 + 0.1)) and "computing" in fast.limit


@pytest.mark.parametrize(("streamed_mib", "applies"), [(26, True), (99, True), (20, False)])
def test_it_applies_to_passes_that_read_about_as_much(streamed_mib: int, applies: bool) -> None:
    assert figures().applies_to(plan(streamed_mib)) is applies


def test_other_pairs_are_not_predicted(load: LoadSettings) -> None:
    pair_figures.save(load, plan(50), figures())
    alone = LoadSettings(model=load.model)
    assert pair_figures.predicted(alone, plan(50), DISK) is None
    assert pair_figures.predicted(load, plan(50, paged=False), DISK) is None


def test_nothing_is_predicted_without_a_disk(load: LoadSettings) -> None:
    pair_figures.save(load, plan(50), figures())
    assert pair_figures.predicted(load, plan(50), None) is None


def test_runs_of_other_budgets_stay_beside_it(load: LoadSettings) -> None:
    pair_figures.save(load, plan(10), figures(10))
    pair_figures.save(load, plan(50), figures(50))
    pair_figures.save(load, plan(52), replace(figures(52), tokens_per_pass=9.0))
    assert pair_figures.predicted(load, plan(10), DISK) is not None
    found = pair_figures.predicted(load, plan(50), DISK)
    assert found is not None and found.tokens_per_pass == 9.0


def test_a_damaged_file_is_as_good_as_none(load: LoadSettings) -> None:
    pair_figures.save(load, plan(50), figures())
    (path,) = cache_folder.tuned().glob("*.figures.json")
    path.write_bytes(b"\xff{")
    assert pair_figures.predicted(load, plan(50), DISK) is None


def test_a_target_with_less_room_for_experts_is_another_matter() -> None:
    roomy = replace(plan(50), expert_bytes=80 * MIB)
    assert not PairFigures.of(RUN, roomy, DISK).applies_to(replace(roomy, expert_bytes=30 * MIB))
