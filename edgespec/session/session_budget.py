"""The memory budget of a session, which may change while texts are written.

`division` divides it, the target's weights take the steps, `process` says how much is free.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from edgespec.concurrency.owning import POLL_S, Closeable
from edgespec.engine.engine import Engine
from edgespec.errors import BudgetError, EdgespecError, SessionClosed, UsageError, setting
from edgespec.grammar.specification import GRAMMAR_BYTES, GRAMMARS_AT_ONCE, library_bytes
from edgespec.memory import division, process
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.memory.process import FreeMemory
from edgespec.ports import Vocabulary
from edgespec.session.opening import LoadedModels
from edgespec.settings.units import auto_bounds, format_size, parse_size
from edgespec.values import PagingStats

GRAMMARS = "grammars"
INTERVAL_S = 0.25
"""Seconds between two readings of the free memory."""


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """A session's budget in bytes, and what is in memory now."""

    budget_bytes: int
    planned_bytes: int
    smallest_bytes: int
    """The smallest budget that this session can be given."""
    resident_bytes: int
    """Resident memory of the process."""
    pinned_bytes: int
    """Weights that stay in memory."""
    streamed_bytes: int
    """Weights that every pass reads."""
    cache_bytes: int
    """KV caches, without the memory that weights have until texts fill it."""
    gain: float
    """Tokens of the latest texts to those without guesses in the same time; 0 if there are none."""
    follows: bool
    """True if the budget follows the machine's free memory."""


class SessionBudget(Closeable):
    """Plan and budget of loaded models, and the thread that follows the free memory."""

    def __init__(self, models: LoadedModels, engine: Engine) -> None:
        self.plan = models.plan
        self._engine = engine
        self._has_reserve = models.settings is not None and models.settings.reserve > 0
        self._target = models.target
        self._adjusts = adjusts = models.target.info.adjusts
        self._cuts = models.cuts if adjusts else ()
        self._changing = threading.Lock()
        self._is_over = threading.Event()
        """Set once the budget follows the free memory no longer."""
        self._follower: threading.Thread | None = None
        budget = models.settings.memory_budget if models.settings else 0
        if adjusts and auto_bounds(budget) is not None:
            self._begin_following(*process.budget_bounds(budget))

    @property
    def report(self) -> BudgetReport:
        paging = self._target.paging()
        rows = self.plan.rows
        resident = sum(r.nbytes for r in rows if (r.owner, r.what) == ("target", "weights"))
        caches = sum(r.nbytes for r in rows if r.what.startswith("KV cache"))
        lent = max(0, paging.pinned_bytes - self.plan.pinned_bytes - self.plan.prompt_bytes)
        return BudgetReport(
            self.plan.budget_bytes,
            self.plan.planned_bytes,
            self._smallest_bytes,
            process.process_rss_bytes(),
            paging.pinned_bytes or resident,
            paging.streamed_bytes,
            max(0, caches - lent),
            self._engine.ledger.gain,
            follows=self._follower is not None and not self._is_over.is_set(),
        )

    def change(self, size: int | str) -> MemoryPlan:
        """Keep another budget from now on, or follow the free memory with `auto`; returns when the
        process's memory is within it.

        Raises BudgetError, UsageError, SessionClosed, and WeightReadError.
        """
        follows = auto_bounds(size) is not None
        if follows and not self._adjusts:
            raise UsageError(
                "the target's weights stay, so that its budget cannot follow the free memory: "
                f"load it with {setting.adjustable_budget(True)}"
            )
        budget_bytes = 0 if follows else parse_size(size, process.total_bytes())
        bounds = process.budget_bounds(size) if follows else (0, 0)
        with self._engine.use(), self._changing:
            if not follows:
                plan = division.adjusted(self.plan, budget_bytes, self._cuts)
                if too_large := process.note_on_plan(plan.planned_bytes):
                    raise BudgetError(too_large)
                self._change_to(self.plan, budget_bytes)
            self._is_over.set()
            if follows:
                self._begin_following(*bounds)
            return self.plan

    def keep_for_grammars(self, vocabulary: Vocabulary) -> None:
        """Keep memory of the budget for structured answers from now on, which weights give up.

        Raises UsageError where they cannot.
        """
        text_bytes = sum(len(vocabulary.piece(token)) for token in range(vocabulary.n_vocab))
        nbytes = library_bytes(vocabulary.n_vocab, text_bytes)
        if not self._has_reserve:
            nbytes += min(GRAMMARS_AT_ONCE, self.plan.n_parallel) * GRAMMAR_BYTES
        with self._engine.use(), self._changing:
            if any(row.what == GRAMMARS for row in self.plan.rows):
                return
            rows = (*self.plan.rows, MemoryRow("process", GRAMMARS, nbytes))
            try:
                self._change_to(replace(self.plan, rows=rows), self.plan.budget_bytes)
            except BudgetError as error:
                paging = "" if self._adjusts else f", or page weights ({setting.adjustable_budget})"
                raise UsageError(
                    f"structured answers need {format_size(nbytes)}, more than the models leave of "
                    f"the memory budget of {format_size(self.plan.budget_bytes)}: raise it{paging}"
                ) from error

    def close(self) -> None:
        """End the thread; the engine is closed. Idempotent."""
        self._is_over.set()
        if self._follower is not None and self._follower is not threading.current_thread():
            self._follower.join()

    @property
    def _smallest_bytes(self) -> int:
        return division.smallest_budget(self.plan, self._cuts)

    def _change_to(self, plan: MemoryPlan, budget_bytes: int) -> None:
        self.plan = plan = division.adjusted(plan, budget_bytes, self._cuts)
        if self._adjusts:  # a read that fails is tried again by the next text
            self._wait(plan, self._target.divide(plan))

    def _wait(self, plan: MemoryPlan, applied: threading.Event) -> None:
        """Wait until a pass or the engine's thread has given the memory up."""
        paging = PagingStats(pinned_bytes=plan.pinned_bytes, streamed_bytes=plan.streamed_bytes)

        def settle() -> None:
            self._target.settle()
            self._engine.ledger.see_budget(paging)

        done = self._engine.after_pass(settle)
        while not applied.wait(POLL_S):
            if done.done():
                done.result()

    def _begin_following(self, floor: int, ceiling: int) -> None:
        self._is_over = is_over = threading.Event()
        self._follower = threading.Thread(
            target=self._follow, args=(floor, ceiling, is_over), name="edgespec-budget", daemon=True
        )
        self._follower.start()

    def _follow(self, floor: int, ceiling: int, is_over: threading.Event) -> None:
        """Follow the free memory; runs in a thread of its own."""
        free = FreeMemory(floor, ceiling)
        while not is_over.wait(INTERVAL_S):
            free.floor = max(floor, self._smallest_bytes)  # which grammars raise
            wanted = free.next_budget(process.auto_budget(), self.plan.budget_bytes)
            if wanted is not None:
                try:
                    with self._engine.use(), self._changing:
                        if is_over.is_set():  # another budget was given meanwhile
                            return
                        self._change_to(self.plan, wanted)
                except SessionClosed:
                    return
                except EdgespecError:  # the next text meets the same failure
                    continue
