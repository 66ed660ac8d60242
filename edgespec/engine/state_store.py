"""State that an engine learns of a pair, kept for its next runs in one small file per pair.

Prices are kept by name, weights of sources as the mixer names them. Calls no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.engine.ledger import Ledger
from edgespec.engine.prices import Prices
from edgespec.engine.settings import EngineSettings
from edgespec.engine.sources.mixer import Mixer, Numbers
from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.ports import LanguageModel
from edgespec.rules.stop_rules import STOP_RULES
from edgespec.values import ModelInfo, PagingStats

Learnt = Mapping[str, Numbers]
"""Learnt state by learner and key."""

MAX_ENTRIES = 64
"""Entries of a pair beyond which they are learnt anew: the file is written after every text."""
MAX_FILES = 128
CONFIDENCES = "confidences"
"""Name of the mixer's weights in the stored state."""
TIMED_ROWS = (1, 2, 8)
MIN_DRAFT_SHARE = 0.05
"""Least time of a draft step relative to a pass, before one was measured."""


def state_file(folder: Path, target: ModelInfo, draft: ModelInfo | None) -> JsonFile:
    """The file of a pair's learnt state, which its runs share."""
    return JsonFile(folder, pair_digest(target, draft), MAX_FILES)


def recalled(file: JsonFile) -> Learnt:
    """The stored state; empty if there is none."""
    try:
        content = (file.read() or {}).items()
        return {key: {name: float(n) for name, n in its.items()} for key, its in content}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


class KeptLedger(Ledger):
    """The ledger of one engine, which goes on with what earlier runs of its pair have learnt."""

    def __init__(
        self,
        target: LanguageModel,
        draft: ModelInfo | None,
        mixer: Mixer,
        settings: EngineSettings,
        file: JsonFile | None,
    ) -> None:
        """Without a `file` nothing is kept."""
        info, self._paging = target.info, target.paging()
        draft_share = 0.0
        if draft is not None and info.size_bytes:
            draft_share = max(MIN_DRAFT_SHARE, draft.size_bytes / info.size_bytes)
        times_passes = info.tree_capable and not self._paging.segments and settings.step_aside
        rule = STOP_RULES.get(settings.fallback)
        super().__init__(
            Prices(info.used_share, draft_share),
            stop_rule=None if rule is None else rule(),
            may_step_aside=settings.step_aside,
            may_overlap=not settings.no_overlap,
            timed_rows=TIMED_ROWS if times_passes else (),
        )
        self._mixer, self._file = mixer, file
        threads = "+".join(str(each.n_threads) for each in (info, draft) if each and each.n_threads)
        self._conditions = [threads and f"{threads} threads", settings.unusual]
        self._recalled: Learnt = {} if file is None else recalled(file)
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
        if self._file is not None:
            prices = {self._name(self._paging): self.state_dict()}
            learnt = {CONFIDENCES: self._mixer.state_dict(), **prices}
            before = self._recalled if len(self._recalled) < MAX_ENTRIES else {}
            self._recalled = {**before, **learnt}
            self._file.write(self._recalled)
