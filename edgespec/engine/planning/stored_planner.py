"""The planner of one engine's rounds, which keeps what it learns for the next run of the pair.

Costs are stored by `CostKey`, weights of drafters by source. Reads no clock and calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

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
MIN_DRAFT_SHARE = 0.05
"""Lower bound of a draft step's prior time relative to a pass, for the overhead of small drafts."""


@dataclass(frozen=True, slots=True)
class CostKey:
    """Cache key of learnt costs: where the weights are, how fast they are read, and settings."""

    streamed_tenths: int
    """Streamed share of the weights, in tenths."""
    threads: tuple[int, ...]
    """Threads of the target and of the draft, without models that do not report them."""
    rules: str = ""
    """Engine settings that differ from their defaults."""
    read_bytes_per_s: float = 0.0
    """Speed of storage; 0 before it was measured."""
    latency_s: float = 0.0
    """Network latency in a pass."""

    @classmethod
    def of(cls, paging: PagingStats, *rest: Any) -> CostKey:
        """The key of weights that are placed so, with the `rest` of its fields."""
        total_bytes = paging.pinned_bytes + paging.streamed_bytes
        tenths = round(10 * paging.streamed_bytes / total_bytes) if total_bytes else 0
        return cls(tenths, *rest)

    def with_reads(self, nbytes: int, seconds: float) -> CostKey:
        """The key after a pass that read `nbytes` in `seconds`."""
        if nbytes <= 0 or seconds <= 0:
            return self
        return replace(self, read_bytes_per_s=nbytes / seconds)

    @property
    def is_known(self) -> bool:
        """True if the key is complete; with streamed weights, it needs a measured speed."""
        return self.read_bytes_per_s > 0 or not self.streamed_tenths

    @property
    def share_name(self) -> str:
        """The streamed share as text, the beginning of `name`."""
        return f"{COSTS}{self.streamed_tenths} tenths streamed"

    @property
    def name(self) -> str:
        """The key as text. Speed and latency are rounded to powers of two, as a disk's speed varies
        by 10 to 20 %."""
        parts = [self.share_name]
        if any(self.threads):
            parts.append("+".join(str(n) for n in self.threads if n) + " threads")
        if self.streamed_tenths:
            parts.append(f"{_power_of_two(self.read_bytes_per_s / 1e6)} MB/s")
        if self.latency_s:
            parts.append(f"{_power_of_two(1e3 * self.latency_s)} ms away")
        return ", ".join([*parts, self.rules] if self.rules else parts)


def _power_of_two(number: float) -> int:
    return 1 << round(math.log2(max(number, 1.0)))


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
        info, is_resident = target.info, not target.paging().segments
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
            lines=None if info.tree_capable else settings.rules_for(info).line_limits,
            times_passes=grower is not None and info.tree_capable and is_resident,
        )
        self._grower = grower
        self._state_store = state_store
        threads = (info.n_threads, draft_info.n_threads if draft_info else 0)
        self._key = CostKey.of(target.paging(), threads, settings.unusual, 0.0, info.latency_s)
        self._recalled: Learnt = {}
        self._recalled_name = ""
        self._has_seen_rounds = False
        if state_store is not None and grower is not None:
            self._recalled = state_store.recall()
            grower.mixer.load_state_dict(self._recalled.get(CONFIDENCES, {}))
            self._recall_costs()

    def see_prompt(self, report: PassReport, n_context: int | None = None) -> None:
        if self._grower is not None:
            super().see_prompt(report, n_context)
            self._key = self._key.with_reads(report.bytes_read, report.read_s)
            self._recall_costs()

    def see_round(self, outcome: RoundOutcome) -> None:
        """Learn from a round. After the first one, costs of earlier runs are no longer loaded."""
        if self._grower is not None:
            self._has_seen_rounds = True
            self._key = self._key.with_reads(outcome.report.bytes_read, outcome.report.read_s)
            super().see_round(outcome)

    def see_budget(self, paging: PagingStats) -> None:
        """Go on with another share of streamed weights, with the costs of an earlier run if known.

        Otherwise what was learnt adapts.
        """
        tenths = CostKey.of(paging, ()).streamed_tenths
        if tenths != self._key.streamed_tenths:
            self.keep()
            self._key = replace(self._key, streamed_tenths=tenths)
            if self._key.is_known:
                self.restore(self._recalled.get(self._key.name, {}))

    def keep(self) -> None:
        """Store the learnt state for the next run."""
        if self._state_store is None or self._grower is None:
            return
        learnt = {CONFIDENCES: self._grower.mixer.state_dict()}
        if self._key.is_known:
            learnt[self._key.name] = self.state()
        self._state_store.keep(renewed(self._recalled, learnt))

    def _recall_costs(self) -> None:
        """Load the costs that an earlier run stored under the current key."""
        name = self._key.name
        if self._key.is_known and not self._has_seen_rounds and name != self._recalled_name:
            self._recalled_name = name
            self.restore(self._recalled.get(name, {}))


def latest_costs(learnt: Learnt, key: CostKey | None = None) -> Numbers | None:
    """The latest stored costs, of runs that streamed the share of `key`; None: of any."""
    prefix = COSTS if key is None else key.share_name
    return next((learnt[name] for name in reversed([*learnt]) if name.startswith(prefix)), None)


def draft_share(target: ModelInfo, draft_bytes: int) -> float:
    """Prior of a draft step's time relative to a pass; 0 if the target's size is unknown."""
    if not target.size_bytes:
        return 0.0
    return max(MIN_DRAFT_SHARE, draft_bytes / target.size_bytes)
