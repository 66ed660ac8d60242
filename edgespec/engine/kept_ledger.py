"""The ledger of one engine, which goes on with what earlier runs of its pair have learnt.

Prices are stored by name, weights of drafters by source. Reads no clock and calls no model.
"""

from __future__ import annotations

from edgespec.engine.ledger import Ledger
from edgespec.engine.prices import Prices
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import Mixer
from edgespec.engine.state_store import Learnt, StateStore, renewed
from edgespec.ports import LanguageModel
from edgespec.values import ModelInfo, PagingStats

CONFIDENCES = "confidences"
"""Name of the calibration of drafters in the stored state."""
COSTS = "rounds@"
"""Beginning of the names of stored prices."""
TIMED_ROWS = (1, 2, 8)
MIN_DRAFT_SHARE = 0.05


class KeptLedger(Ledger):
    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        mixer: Mixer | None,
        settings: EngineSettings,
        state_store: StateStore | None,
    ) -> None:
        info, paging = target.info, target.paging()
        draft_info = draft.info if draft is not None else None
        times_passes = mixer is not None and info.tree_capable and not paging.segments
        super().__init__(
            Prices(
                used_share=info.used_share,
                draft_share=draft_share(info, draft_info.size_bytes) if draft_info else 0.0,
                latency_s=info.latency_s,
            ),
            stop_rule=settings.new_stop_rule(),
            may_step_aside=settings.step_aside,
            may_overlap=settings.may_overlap,
            timed_rows=TIMED_ROWS if times_passes and settings.step_aside else (),
        )
        self._mixer = mixer
        self._state_store = state_store if mixer is not None else None
        n_threads = [each.n_threads for each in (info, draft_info) if each is not None]
        threads = "+".join(str(n) for n in n_threads if n)
        self._conditions = [threads and f"{threads} threads", settings.unusual]
        self._paging = paging
        self._recalled: Learnt = {}
        if self._state_store is not None and mixer is not None:
            self._recalled = self._state_store.recall()
            mixer.load_state_dict(self._recalled.get(CONFIDENCES, {}))
            self.load_state_dict(self._recalled.get(self._name, {}))

    @property
    def _name(self) -> str:
        share = share_name(streamed_tenths(self._paging))
        return ", ".join(filter(None, [share, *self._conditions]))

    def see_budget(self, paging: PagingStats) -> None:
        if streamed_tenths(paging) != streamed_tenths(self._paging):
            self.keep()
            self._paging = paging
            self.load_state_dict(self._recalled.get(self._name, {}))

    def keep(self) -> None:
        if self._state_store is not None and self._mixer is not None:
            learnt = {CONFIDENCES: self._mixer.state_dict(), self._name: self.state_dict()}
            self._recalled = renewed(self._recalled, learnt)
            self._state_store.keep(self._recalled)


def streamed_tenths(paging: PagingStats) -> int:
    """Streamed share of the weights, in tenths."""
    total_bytes = paging.pinned_bytes + paging.streamed_bytes
    return round(10 * paging.streamed_bytes / total_bytes) if total_bytes else 0


def share_name(tenths: int) -> str:
    """Beginning of the names of costs with so many tenths of the weights streamed."""
    return f"{COSTS}{tenths} tenths streamed"


def draft_share(target: ModelInfo, draft_bytes: int) -> float:
    """Prior of a draft step's time relative to a pass; 0 if the target's size is unknown."""
    if not target.size_bytes:
        return 0.0
    return max(MIN_DRAFT_SHARE, draft_bytes / target.size_bytes)
