"""State that an engine learns of a pair, kept for its next runs in one small file per pair.

Prices are kept by name, weights of sources as the mixer names them. Calls no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from edgespec.engine.ledger import Ledger
from edgespec.engine.prices import Prices
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import Mixer, Numbers
from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.ports import LanguageModel
from edgespec.rules.stop_rules import STOP_RULES
from edgespec.values import ModelInfo, PagingStats

T = TypeVar("T")
Learnt = Mapping[str, Numbers]
"""Learnt state by learner and key, the least recently used first."""

MAX_ENTRIES = 64
"""Most entries per pair: the file is written after every text."""
MAX_FILES = 128
CONFIDENCES = "confidences"
"""Name of the mixer's weights in the stored state."""
TIMED_ROWS = (1, 2, 8)
MIN_DRAFT_SHARE = 0.05
"""Least time of a draft step relative to a pass, before one was measured."""


def renewed(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
    """`before` updated by `now`, without the least recently used of more than `MAX_ENTRIES`."""
    others = {name: learnt for name, learnt in before.items() if name not in now}
    return dict([*others.items(), *now.items()][-MAX_ENTRIES:])


class StateStore:
    """The learnt state of a pair, in a file that its runs share."""

    def __init__(self, folder: Path, target: ModelInfo, draft: ModelInfo | None) -> None:
        self._file = JsonFile(folder, pair_digest(target, draft), MAX_FILES)

    def recall(self) -> Learnt:
        """The stored state; empty if there is none."""
        try:
            content = (self._file.read() or {}).items()
            return {key: {name: float(n) for name, n in its.items()} for key, its in content}
        except (ValueError, TypeError, AttributeError, OverflowError):
            return {}

    def keep(self, learnt: Learnt) -> None:
        """Store the state for the next run, if possible."""
        self._file.write(learnt)


class KeptLedger(Ledger):
    """The ledger of one engine, which goes on with what earlier runs of its pair have learnt."""

    def __init__(
        self,
        target: LanguageModel,
        draft: ModelInfo | None,
        mixer: Mixer,
        settings: EngineSettings,
        state_store: StateStore | None,
    ) -> None:
        """Without a `state_store` nothing is kept."""
        info, self._paging = target.info, target.paging()
        draft_share = 0.0
        if draft is not None and info.size_bytes:
            draft_share = max(MIN_DRAFT_SHARE, draft.size_bytes / info.size_bytes)
        times_passes = info.tree_capable and not self._paging.segments and settings.step_aside
        rule = STOP_RULES.get(settings.fallback)
        super().__init__(
            Prices(info.used_share, draft_share, info.latency_s),
            stop_rule=None if rule is None else rule(),
            may_step_aside=settings.step_aside,
            may_overlap=not settings.no_overlap,
            timed_rows=TIMED_ROWS if times_passes else (),
        )
        self._mixer, self._state_store = mixer, state_store
        threads = "+".join(str(each.n_threads) for each in (info, draft) if each and each.n_threads)
        self._conditions = [threads and f"{threads} threads", settings.unusual]
        self._recalled: Learnt = {}
        if state_store is not None:
            self._recalled = state_store.recall()
            mixer.load_state_dict(self._recalled.get(CONFIDENCES, {}))
            self.load_state_dict(self._recalled.get(self._name(self._paging), {}))

    def _name(self, paging: PagingStats) -> str:
        """Name of stored prices: the streamed share of the weights, and the other conditions."""
        n_bytes = max(1, paging.pinned_bytes + paging.streamed_bytes)
        share = f"rounds@{round(10 * paging.streamed_bytes / n_bytes)} tenths streamed"
        return ", ".join(filter(None, [share, *self._conditions]))

    def see_budget(self, paging: PagingStats) -> None:
        """Go on with the prices of another share of streamed weights."""
        if self._name(paging) != self._name(self._paging):
            self.keep()
            self._paging = paging
            self.load_state_dict(self._recalled.get(self._name(paging), {}))

    def keep(self) -> None:
        """Store what was learnt."""
        if self._state_store is not None:
            prices = {self._name(self._paging): self.state_dict()}
            learnt = {CONFIDENCES: self._mixer.state_dict(), **prices}
            self._recalled = renewed(self._recalled, learnt)
            self._state_store.keep(self._recalled)
