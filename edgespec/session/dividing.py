"""Division of a session's budget between what its settings ask for and its models' needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError
from edgespec.memory import heap, library_pages, process
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.needs import ModelNeeds, plan_models
from edgespec.memory.stable_count import stable_count
from edgespec.runtimes import PreparedModel
from edgespec.session import reserving
from edgespec.session.plan_score import expected_rate
from edgespec.settings.config import LoadSettings


@dataclass(frozen=True, slots=True)
class SessionNeeds:
    """Settings, target and budget of a session, which its models' needs are divided for."""

    settings: LoadSettings
    engine_settings: EngineSettings
    target: PreparedModel
    budget_bytes: int
    n_parallel: int
    """Texts at once."""

    def divided(
        self, needs: Sequence[ModelNeeds], expected: Sequence[MemoryRow] = ()
    ) -> MemoryPlan:
        """The plan for these needs of target and draft, and `expected` rows. Raises BudgetError.

        Spare memory for grammars is kept if the budget has it and the target does not page for it.
        """
        settings = self.settings
        if settings.grammars or not settings.spare_grammars:
            return self._divided_with(needs, expected, settings.grammars)
        least = self._divided_with(needs, expected, False)
        with suppress(BudgetError):
            planned = self._divided_with(needs, expected, True)
            if planned.paged == least.paged:
                return replace(planned, smallest_bytes=least.smallest_bytes)
        note = reserving.without_grammars(self.target, self.budget_bytes)
        return replace(least, notes=(note,))

    def _divided_with(
        self, needs: Sequence[ModelNeeds], expected: Sequence[MemoryRow], grammars: bool
    ) -> MemoryPlan:
        """The plan of `divided`, with memory for grammars or not."""
        settings, target = self.settings, self.target
        others = reserving.reserved_rows(settings, self.engine_settings, target, needs, grammars)
        library_pages.release()
        heap.trim_heap_top()  # contexts created for measuring are rows of their own
        footprint_bytes = stable_count(process.footprint_bytes())
        n_threads = settings.threads or process.usable_cores()
        try:
            return plan_models(
                self.budget_bytes,
                process.round_up_to_step(footprint_bytes),
                needs[0],
                needs[1] if len(needs) > 1 else None,
                score=partial(expected_rate, n_texts=self.n_parallel, n_threads=n_threads),
                enforced=target.enforced,
                largest_process_bytes=process.round_up_to_step(
                    footprint_bytes + process.PROCESS_SPREAD_BYTES
                ),
                others=[*others, *expected],
                adjustable=settings.pages_all,
            )
        except BudgetError as error:
            chosen = process.auto_note(self.budget_bytes, settings.memory_budget)
            message = "; ".join([str(error), *chosen, *target.notes()])
            raise BudgetError(message, error.smallest_bytes) from error
