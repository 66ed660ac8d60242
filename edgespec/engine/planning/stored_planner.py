"""The planner of one engine's rounds, which keeps what it learns for the next run of the pair.

Costs are stored by name, weights of drafters by source. Reads no clock and calls no model.
"""

from __future__ import annotations

import math

from edgespec.engine.drafting.grower import TreeGrower
from edgespec.engine.drafting.state_store import Learnt, Numbers, StateStore, renewed
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
TIMED_ROWS = (1, 2, 8)
"""Rows at which the time of a resident target's pass takes a step; one row first, as the first pass
after a prompt is slow."""
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
        self._state_store = state_store if grower is not None else None
        n_threads = [each.n_threads for each in (info, draft_info) if each is not None]
        threads = "+".join(str(n) for n in n_threads if n)
        away = f"{_power_of_two(1e3 * info.latency_s)} ms away" if info.latency_s else ""
        self._conditions = [threads and f"{threads} threads", away, settings.unusual]
        self._paging = target.paging()
        self._speed = ""
        """Speed of reads. It is rounded to powers of two, as a disk's varies by 10 to 20 %."""
        self._recalled: Learnt = {}
        if self._state_store is not None and grower is not None:
            self._recalled = self._state_store.recall()
            grower.mixer.load_state_dict(self._recalled.get(CONFIDENCES, {}))
            self.restore(self._recalled.get(self._name, {}))

    @property
    def _name(self) -> str:
        """Name of the costs: where the weights are, how fast they are read, threads and settings.

        Empty until the speed of reads is known.
        """
        tenths = streamed_tenths(self._paging)
        if tenths and not self._speed:
            return ""
        speed = self._speed if tenths else ""
        return ", ".join(filter(None, [share_name(tenths), speed, *self._conditions]))

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        """Learn from reading a prompt, with a grower; the first one tells the speed of reads."""
        if self._grower is None:
            return
        super().see_prompt(report, n_context)
        if report.bytes_read and report.read_s and not self._speed:
            self._speed = f"{_power_of_two(report.bytes_read / report.read_s / 1e6)} MB/s"
            self.restore(self._recalled.get(self._name, {}))

    def see_budget(self, paging: PagingStats) -> None:
        """Go on with another share of streamed weights, with the costs of an earlier run if known.

        Otherwise what was learnt adapts.
        """
        if streamed_tenths(paging) != streamed_tenths(self._paging):
            self.keep()
            self._paging = paging
            self.restore(self._recalled.get(self._name, {}))

    def keep(self) -> None:
        """Store the learnt state for the next run."""
        if self._state_store is not None and self._grower is not None:
            learnt = {CONFIDENCES: self._grower.mixer.state_dict()}
            learnt |= {name: self.state() for name in [self._name] if name}
            self._recalled = renewed(self._recalled, learnt)
            self._state_store.keep(self._recalled)


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
