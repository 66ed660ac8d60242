"""A target that is paged without a draft guesses from the text itself, unless it is told not to."""

from __future__ import annotations

import functools

import pytest

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources import lookup
from edgespec.memory import process
from edgespec.memory.budget import MIB, MemoryPlan
from edgespec.models.embedded import embedded_pair
from edgespec.session import prepared_models, strategy
from edgespec.settings.config import LoadSettings
from edgespec_runtimes.gguf import entry
from edgespec_runtimes.gguf.file.header import read_header

PROCESS_BYTES = 90 * MIB
"""Size of the process in every plan: freed memory of other tests decides nothing."""


@pytest.fixture(autouse=True)
def _small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of recent texts would take a third of these weights."""
    monkeypatch.setattr(lookup, "BYTES", 0)


@pytest.fixture
def _fixed_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "footprint_bytes", lambda: PROCESS_BYTES)


def load_settings(budget: int | str, **others: object) -> LoadSettings:
    target = embedded_pair().target
    return LoadSettings(model=target, memory_budget=budget, ctx_size=256, **others)


def planned(budget: int | str, **rules: bool) -> MemoryPlan:
    return edgespec.plan(load_settings(budget), EngineSettings(**rules))


@pytest.fixture
def _room_for_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers for guesses may have half of a model of 5 MiB."""
    monkeypatch.setattr(strategy, "LOOKUP_TOKENS", 2.0)


@functools.cache
def least() -> int:
    """The smallest budget of a process of PROCESS_BYTES; others may take more."""
    return planned("4GiB", lookup=False).smallest_bytes - 11 * MIB // 2


@pytest.mark.usefixtures("_fixed_process", "_room_for_guesses")
def test_a_paged_target_keeps_room_for_guesses() -> None:
    budget = least() + MIB // 2
    plan = planned(budget)
    assert plan.paged and plan.max_nodes - 1 == prepared_models.N_LOOKUPS
    assert plan.smallest_bytes == planned(budget, lookup=False).smallest_bytes


@pytest.mark.usefixtures("_fixed_process")
def test_a_resident_target_or_one_that_is_told_not_to_keeps_none() -> None:
    assert planned("4GiB").max_nodes == 1
    assert planned(least() + MIB, lookup=False).max_nodes == 1


@pytest.mark.usefixtures("_fixed_process", "_room_for_guesses")
def test_limits_of_guesses_need_no_draft() -> None:
    """`--draft-max 5` was refused without a draft, although such a target guesses."""
    rules = EngineSettings(draft_max=5)
    plan = edgespec.plan(load_settings(least() + MIB // 2), rules)
    assert plan.max_nodes == 6 and not any("draft_max" in note for note in plan.notes)
    for idle in (rules, rules.model_copy(update={"lookup": False})):
        told = edgespec.plan(load_settings("4GiB"), idle).notes
        assert any(
            "for `draft_max` to have an effect, name a draft with `draft`" in n for n in told
        )
    assert not edgespec.plan(load_settings("4GiB"), rules.model_copy(update={"lookup": True})).notes


@pytest.mark.usefixtures("_fixed_process")
def test_the_smallest_budget_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = least()
    assert planned(budget).paged
    monkeypatch.setattr(strategy, "LOOKUP_TOKENS", 0.0)  # their buffers would take too much
    assert planned(budget).paged and planned(budget).max_nodes == 1


@pytest.mark.usefixtures("_fixed_process")
@pytest.mark.parametrize("most_for_lookups", [2.0, 0.0])
def test_both_plans_are_made_from_one_reading(
    most_for_lookups: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, read = least() + MIB // 2, []
    monkeypatch.setattr(strategy, "LOOKUP_TOKENS", most_for_lookups)
    monkeypatch.setattr(entry, "read_header", lambda path: read.append(path) or read_header(path))
    assert planned(budget).max_nodes > 1 or not most_for_lookups
    assert len(read) == 1
