"""A draft that nobody asked for is left out where the target alone is expected to be faster."""

from __future__ import annotations

import pytest

import edgespec
from edgespec.memory import process
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings

PROCESS_BYTES = 90 * MIB
"""Size of the process in every plan: freed memory of other tests decides nothing."""


def planned(budget: int | str, optional: bool = True, has_draft: bool = True) -> MemoryPlan:
    pair = embedded_pair()
    return edgespec.plan(
        LoadSettings(
            model=pair.target,
            draft=pair.draft if has_draft else None,
            optional_draft=optional and has_draft,
            memory_budget=budget,
            ctx_size=256,
        )
    )


@pytest.fixture(autouse=True)
def _same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "footprint_bytes", lambda: PROCESS_BYTES)


@pytest.fixture
def enough_alone() -> int:
    """A budget that holds the target, and nothing more."""
    return planned("4GiB", has_draft=False).planned_bytes


def least_paged() -> int:
    """The smallest budget of the pair; other processes may take more."""
    return planned("4GiB", optional=False).smallest_bytes - 11 * MIB // 2


def test_it_guesses_where_both_models_fit() -> None:
    plan = planned("4GiB")
    assert plan.has_draft and not plan.notes


def test_it_is_left_out_where_the_target_would_be_paged(enough_alone: int) -> None:
    plan = planned(enough_alone)
    assert not plan.has_draft and not plan.paged
    (note,) = (note for note in plan.notes if "edgespec-draft-q8_0" in note)
    assert "draft=None" not in note


def test_a_budget_that_holds_the_target_alone_is_enough() -> None:
    least = planned("4GiB", has_draft=False).smallest_bytes
    assert not planned(least).has_draft


@pytest.mark.slow
def test_one_that_was_asked_for_is_used_and_told_of() -> None:
    plan = planned(least_paged(), optional=False)
    assert plan.has_draft
    assert any("draft=None" in note for note in plan.notes)
