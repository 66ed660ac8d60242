"""The planner of one engine's rounds, which keeps what it learns for the next run of the pair.

Costs are stored by name, weights of drafters by source. Reads no clock and calls no model.
"""

from __future__ import annotations

import math

from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.state_store import Learnt, Numbers, StateStore, renewed
from edgespec.engine.outcome import RoundOutcome
from edgespec.engine.planning.decision import RoundPlanner
from edgespec.engine.planning.expert_stalls import ExpertStalls
from edgespec.engine.planning.pass_curve import PassCurve
from edgespec.engine.planning.round_costs import RoundCosts
from edgespec.engine.settings import EngineSettings
from edgespec.ports import LanguageModel
from edgespec.values import ModelInfo, PagingStats, PassReport

CONFIDENCES = "confidences"
"""Name of the calibration of drafters in the stored state."""
COSTS = "rounds@"
"""Beginning of the names of stored costs."""
TIMED_ROWS = (8, 2)
"""Rows at which the time of a resident target's pass takes a step, besides one."""
MIN_DRAFT_SHARE = 0.05
"""Lower bound of a draft step's prior time relative to a pass, for the overhead of small drafts."""


class StoredPlanner(RoundPlanner):
    """A round planner that goes on with what earlier runs of its pair have learnt.

    Without a grower nothing is learnt; without a store nothing is kept.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        grower: TreeGrower | None,
        settings: EngineSettings,
        state_store: StateStore | None,
    ) -> None:
        info = target.info
        times_passes = grower is not None and info.tree_capable and not target.paging().segments
        draft_info = draft.info if draft is not None else None
        super().__init__(
            costs=RoundCosts(
                PassCurve(ExpertStalls(info.used_share)),
                draft_share=draft_share(info, draft_info.size_bytes) if draft_info else 0.0,
                latency_s=info.latency_s,
            ),
            stop_rule=settings.new_stop_rule(),
            may_step_aside=settings.step_aside,
            may_overlap=settings.may_overlap,
            max_rows=settings.max_nodes(info),
            lines=None if info.tree_capable else settings.limits_for(info),
            timed_rows=TIMED_ROWS if times_passes and settings.step_aside else (),
        )
        self._grower = grower
        self._state_store = state_store
        n_threads = (info.n_threads, draft_info.n_threads if draft_info else 0)
        threads = "+".join(str(n) for n in n_threads if n)
        latency_ms = _power_of_two(1e3 * info.latency_s) if info.latency_s else 0
        self._tenths = streamed_tenths(target.paging())
        self._read_bytes_per_s = 0.0
        self._rest = threads and f", {threads} threads"
        self._rest += f", {latency_ms} ms away" if latency_ms else ""
        self._rest += settings.unusual and f", {settings.unusual}"
        self._recalled: Learnt = {}
        self._recalled_name = ""
        self._has_seen_rounds = False
        if state_store is not None and grower is not None:
            self._recalled = state_store.recall()
            grower.mixer.load_state_dict(self._recalled.get(CONFIDENCES, {}))
            self._recall_costs()

    @property
    def _name(self) -> str:
        """Name of the costs: where the weights are, how fast they are read, threads and settings.

        Empty until the speed of reads is known. It is rounded to powers of two, as a disk's speed
        varies by 10 to 20 %.
        """
        if not self._tenths:
            return share_name(0) + self._rest
        speed = f", {_power_of_two(self._read_bytes_per_s / 1e6)} MB/s{self._rest}"
        return share_name(self._tenths) + speed if self._read_bytes_per_s else ""

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        if self._grower is not None:
            super().see_prompt(report, n_context)
            self._see_reads(report)
            self._recall_costs()

    def see_round(self, outcome: RoundOutcome) -> None:
        """Learn from a round. After the first one, costs of earlier runs are no longer loaded."""
        if self._grower is not None:
            self._has_seen_rounds = True
            self._see_reads(outcome.report)
            super().see_round(outcome)

    def _see_reads(self, report: PassReport) -> None:
        if report.bytes_read > 0 and report.read_s > 0:
            self._read_bytes_per_s = report.bytes_read / report.read_s

    def see_budget(self, paging: PagingStats) -> None:
        """Go on with another share of streamed weights, with the costs of an earlier run if known.

        Otherwise what was learnt adapts.
        """
        tenths = streamed_tenths(paging)
        if tenths != self._tenths:
            self.keep()
            self._tenths = tenths
            self.restore(self._recalled.get(self._name, {}))

    def keep(self) -> None:
        """Store the learnt state for the next run."""
        if self._state_store is None or self._grower is None:
            return
        learnt = {CONFIDENCES: self._grower.mixer.state_dict()}
        if name := self._name:
            learnt[name] = self.state()
        self._state_store.keep(renewed(self._recalled, learnt))

    def _recall_costs(self) -> None:
        """Load the costs that an earlier run stored under the current name."""
        name = self._name
        if not self._has_seen_rounds and name != self._recalled_name:
            self._recalled_name = name
            self.restore(self._recalled.get(name, {}))


def streamed_tenths(paging: PagingStats) -> int:
    """Streamed share of the weights, in tenths."""
    total_bytes = paging.pinned_bytes + paging.streamed_bytes
    return round(10 * paging.streamed_bytes / total_bytes) if total_bytes else 0


def share_name(tenths: int) -> str:
    """Beginning of the names of costs with so many tenths of the weights streamed."""
    return f"{COSTS}{tenths} tenths streamed"


def latest_costs(learnt: Learnt, prefix: str = COSTS) -> Numbers | None:
    """The latest stored costs whose names begin so."""
    return next((learnt[name] for name in reversed([*learnt]) if name.startswith(prefix)), None)


def draft_share(target: ModelInfo, draft_bytes: int) -> float:
    """Prior of a draft step's time relative to a pass; 0 if the target's size is unknown."""
    if not target.size_bytes:
        return 0.0
    return max(MIN_DRAFT_SHARE, draft_bytes / target.size_bytes)


def _power_of_two(number: float) -> int:
    return 1 << round(math.log2(max(number, 1.0)))
