"""Tokens a second over memory, on a device that computes by formula."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from edgespec.errors import BudgetError
from edgespec.tuning import curve, curve_page
from tuning_lab import DRAFT, MIB, SyntheticLab, wanted

BUDGETS = [n * MIB for n in (80, 100, 140, 180)]


def drawn(*budgets: int, **lab: object) -> curve.Curve:
    return curve.draw(SyntheticLab(**lab), wanted(DRAFT), budgets or BUDGETS)


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
