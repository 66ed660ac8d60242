"""Tokens a second over memory, on a device that computes by formula."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from edgespec.config import LoadSettings
from edgespec.errors import BudgetError
from edgespec.tuning import curve, curve_page
from edgespec.tuning.drawing import draw
from edgespec.tuning.measurements import Written
from tuning_lab import DRAFT, MIB, SyntheticLab, wanted

BUDGETS = [n * MIB for n in (80, 100, 140, 180)]


def drawn(*budgets: int, **lab: object) -> curve.Curve:
    return draw(SyntheticLab(**lab), wanted(DRAFT), budgets or BUDGETS)


def test_more_memory_is_never_slower():
    rates = [point.predicted or 0.0 for point in drawn().points]
    assert rates == sorted(rates) and rates[0] > 0


def test_predictions_are_near_what_is_measured():
    error = curve.typical_error(drawn())
    assert error is not None and error < 0.15


def test_a_budget_that_is_too_small_names_one_that_is_not():
    point = drawn(MIB, 100 * MIB).points[0]
    assert (point.works, point.smallest_bytes) == (False, 53 * MIB)


def test_budgets_that_are_all_too_small_are_an_error():
    with pytest.raises(BudgetError, match="--budgets") as refused:
        drawn(MIB, 2 * MIB)
    assert refused.value.smallest_bytes == 53 * MIB


def test_without_time_everything_is_predicted_alone():
    points = drawn(left_s=0.0).points
    assert [point.measured for point in points] == [None] * len(BUDGETS)
    assert all(point.predicted for point in points)


def test_what_takes_too_long_to_load_is_not_run():
    """At 4 MiB a second, 150 MiB of weights take more than the half minute that is left."""
    slow = drawn(70 * MIB, 100 * MIB, 400 * MIB, disk_bytes_per_s=4 * MIB, left_s=30.0)
    largest = slow.points[-1]
    assert largest.predicted and largest.measured is None
    fast = drawn(70 * MIB, 100 * MIB, 400 * MIB, left_s=30.0)
    assert fast.points[-1].measured


def test_a_draft_that_guesses_nothing_stops_paying_at_once():
    assert drawn(alphas={DRAFT: 0.0}).draft_pays_until == BUDGETS[0]
    free = {"node_bytes": 0, "draft_bytes": 0, "node_s": 0.0005}
    assert drawn(80 * MIB, 100 * MIB, **free).draft_pays_until is None


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere():
    page = curve_page.html(drawn(MIB, *BUDGETS), "edgespec tune <x>")
    assert ElementTree.fromstring(page).tag == "html"
    without_namespace = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", without_namespace)


def test_the_table_and_the_page_say_the_same():
    found = drawn()
    page = curve_page.html(found, "")
    cells = {cell for line in curve_page.table(found)[1:5] for cell in re.split(r" {2,}", line)}
    assert cells and all(cell.strip() in page for cell in cells)


def test_each_budget_has_the_settings_that_are_predicted_to_be_best_there():
    """Where more is read, guesses save more: drafting pays at the small budgets only."""
    points = drawn(80 * MIB, 180 * MIB).points
    drafts = [point.choice.draft if point.choice else None for point in points]
    assert drafts == [DRAFT, None]


def test_what_a_budget_has_is_no_less_than_what_the_defaults_have_there():
    for point in drawn(node_s=0.05, contention=0.1).points:
        assert point.predicted and point.predicted_usual
        assert point.predicted >= point.predicted_usual


def test_the_chosen_settings_are_run():
    lab = SyntheticLab()
    found = draw(lab, wanted(DRAFT), [80 * MIB, 180 * MIB])
    assert all(point.measured == pytest.approx(point.predicted, rel=0.1) for point in found.points)


def test_what_does_not_gain_in_a_run_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    lab = SyntheticLab()
    write = lab.write

    def slow_alone(load: LoadSettings, *rest: Any, **more: Any) -> Written:
        run = write(load, *rest, **more)
        if load.draft is not None:
            return run
        texts = tuple(replace(text, decode_s=10 * text.decode_s) for text in run.texts)
        return replace(run, texts=texts)

    monkeypatch.setattr(lab, "write", slow_alone)
    last = draw(lab, wanted(DRAFT), [80 * MIB, 180 * MIB]).points[-1]
    assert last.choice == wanted(DRAFT).usual and last.predicted == last.predicted_usual


def test_a_budget_where_other_settings_are_best_is_run_first():
    lab = SyntheticLab()
    said: list[str] = []
    draw(lab, wanted(DRAFT), [80 * MIB, 100 * MIB, 180 * MIB], said.append)
    first = next(line for line in said if line.startswith("a run at"))
    assert first.startswith("a run at 0.18 GiB")


def test_budgets_with_which_more_memory_is_slower_are_named():
    found = drawn()
    first, *rest = found.points
    fallen = replace(found, points=(first, replace(rest[0], measured=first.measured / 2)))
    assert fallen.falls == (fallen.points,)
    assert any("is slower than" in line for line in curve_page.facts(fallen))
    assert not found.falls


def test_programs_are_told_the_settings_of_each_budget():
    drafted, alone = curve.as_dict(drawn(80 * MIB, 180 * MIB))["points"]
    assert drafted["settings"] == "defaults" and alone["settings"].startswith("--no-draft")


def test_the_run_that_predictions_rest_on_confirms_none():
    found = drawn(80 * MIB, 100 * MIB, 120 * MIB)
    assert [point.is_fitted for point in found.points] == [False, False, True]
    alone = replace(found, points=found.points[2:])
    assert curve.typical_error(alone) is None


def test_a_budget_is_run_only_where_all_texts_have_some_rounds():
    """Passes of 70 MiB at 10 MiB/s take seven seconds."""
    found = drawn(80 * MIB, 100 * MIB, 120 * MIB, disk_bytes_per_s=10 * MIB, left_s=15.0)
    assert [point.measured is None for point in found.points] == [True, True, False]


def test_the_pair_is_measured_where_passes_are_short_and_still_wait():
    found = drawn(80 * MIB, 100 * MIB, 140 * MIB, node_bytes=0, draft_bytes=0)
    assert [point.is_fitted for point in found.points] == [False, False, True]
    almost_all = drawn(80 * MIB, 100 * MIB, 145 * MIB, node_bytes=0, draft_bytes=0)
    assert [point.is_fitted for point in almost_all.points] == [False, True, False]
